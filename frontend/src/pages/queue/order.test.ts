import { expect, it } from "vitest";
import type { Waiting } from "../../api/queue";
import { borders, isRelegated, outlook, split, startIn } from "./order";

const row = (changes: Partial<Waiting>): Waiting => ({
  id: "r", place: 1, tenant: "a", entitlement: "a-e", tier: "t", class: "elastic", arrival_s: 0, input_tokens: 1, output_tokens: 1, kv_tokens: 1, attempt: 1, why: "w", ...changes,
});

it("an expected start is told from now on", () => {
  expect([startIn(row({ start_s: 100.2 }), 100), startIn(row({ start_s: 104 }), 100), startIn(row({}), 100)]).toEqual(["now", "in 4.00 s", "beyond the preview"]);
});

it("who gives up before the start is said before who is late", () => {
  expect(outlook(row({ start_s: 9, expires_s: 8, deadline_s: 5 }))).toBe("expires");
  expect(outlook(row({ expires_s: 8 }))).toBe("expires");
  expect(outlook(row({ start_s: 6, deadline_s: 5 }))).toBe("late");
  expect(outlook(row({ start_s: 4, deadline_s: 5, expires_s: 8 }))).toBe("in time");
  expect(outlook(row({}))).toBe("unknown");
});

it("relegated requests are known by their line", () => {
  expect([isRelegated(row({ why: "elastic band, relegated, due 1 s" })), isRelegated(row({}))]).toEqual([true, false]);
});

it("queues of similar prompts stand apart from bands, and empty bubbles are left out", () => {
  const parts = [
    { name: "elastic band", kind: "band" as const, waiting: 3 },
    { name: "queue 1", kind: "queue" as const, waiting: 0, low: 1, high: 99 },
    { name: "bubble 2", kind: "bubble" as const, waiting: 0, low: 100, high: 200 },
  ];
  const { lengths, bands } = split(parts);
  expect([lengths.map((p) => p.name), bands.map((p) => p.name), borders(parts[1]!)]).toEqual([["queue 1"], ["elastic band"], "1 to 99 tokens"]);
});
