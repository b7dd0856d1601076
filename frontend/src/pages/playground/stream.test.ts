import { expect, it } from "vitest";
import { chunkOf, events, retryAfterS, speed } from "./stream";

it("splits events wherever the bytes were cut", () => {
  const whole = 'data: {"a":1}\r\n\r\n: keep-alive\n\ndata: [DONE]\n\n';
  const found: string[] = [];
  let buffer = "";
  for (const piece of whole) {
    const { data, rest } = events(buffer + piece);
    found.push(...data);
    buffer = rest;
  }
  expect(found).toEqual(['{"a":1}', "[DONE]"]);
  expect(buffer).toBe("");
});

it("reads text, end, usage and errors, and survives what it does not know", () => {
  expect(chunkOf('{"choices":[{"delta":{"content":"Hi"},"finish_reason":null}]}')).toEqual({ text: "Hi" });
  expect(chunkOf('{"choices":[{"delta":{},"finish_reason":"stop"}]}')).toEqual({ text: "", finish: "stop" });
  expect(chunkOf('{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}')).toEqual({ text: "", usage: { prompt: 3, completion: 9 } });
  expect(chunkOf('{"error":{"message":"backend lost"}}')).toEqual({ text: "", error: "backend lost" });
  expect([chunkOf("[DONE]"), chunkOf("{")]).toEqual([null, null]);
});

it("speed counts from the first token on", () => {
  const found = speed({ sent: 1000, pieces: [1200, 1300, 1500], ended: 1510 });
  expect(found).toEqual({ tokens: 3, ttftMs: 200, totalMs: 510, tokensPerS: 2000 / 300, tbtMs: 150, worstMs: 200 });
  expect(speed({ sent: 0, pieces: [], ended: 5 })).toEqual({ tokens: 0, totalMs: 5 });
  expect(speed({ sent: 0, pieces: [10, 20], ended: 21, tokens: 5 }).tokensPerS).toBe(400);
});

it("the finer of the two headers says when to come back", () => {
  const headers = (map: Record<string, string>) => ({ get: (name: string) => map[name] ?? null });
  expect(retryAfterS(headers({ "retry-after-ms": "1500", "retry-after": "2" }))).toBe(1.5);
  expect(retryAfterS(headers({ "retry-after": "2" }))).toBe(2);
  expect(retryAfterS(headers({}))).toBeUndefined();
});
