/** One request to /v1 from the browser, with everything that can be known of it while it runs. */

import { chunkOf, events, retryAfterS, type Times } from "./stream";

export interface Run {
  state: "running" | "done" | "stopped" | "refused" | "failed";
  key: string;
  prompt: string;
  /** As the gateway names it in `x-request-id`. */
  id?: string;
  status?: number;
  reason?: string;
  queueMs?: number;
  retryS?: number;
  error?: string;
  finish?: string;
  usage?: { prompt: number; completion: number };
  answer: string;
  times: Times;
}

interface Body {
  model: string;
  messages: { role: string; content: string }[];
  max_tokens?: number;
}

/** Sends it and tells of every change. `ended` never fails: what went wrong is in the run. */
export function run(key: string, body: Body, tell: (run: Run) => void): { cancel: () => void; ended: Promise<Run> } {
  const abort = new AbortController();
  const pieces: number[] = [];
  let current: Run = { state: "running", key, prompt: body.messages.at(-1)?.content ?? "", answer: "", times: { sent: performance.now(), pieces } };
  const set = (changes: Partial<Run>) => {
    current = { ...current, ...changes };
    tell(current);
  };
  const end = (state: Run["state"], changes: Partial<Run> = {}): Run => {
    const tokens = current.usage?.completion;
    set({ ...changes, state, times: { ...current.times, pieces: [...pieces], ended: performance.now(), ...(tokens === undefined ? {} : { tokens }) } });
    return current;
  };

  const go = async (): Promise<Run> => {
    tell(current);
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal: abort.signal,
    });
    const { headers } = response;
    const queued = headers.get("x-quartermaster-queue-ms");
    set({ status: response.status, id: headers.get("x-request-id") ?? undefined, reason: headers.get("x-quartermaster-reason") ?? undefined, queueMs: queued === null ? undefined : Number(queued) });
    if (!response.ok || !response.body) {
      const told = (await response.json().catch(() => null)) as { error?: { message?: string } } | null;
      return end(response.status === 429 || response.status === 403 ? "refused" : "failed", { error: told?.error?.message ?? `The server answered ${response.status}.`, retryS: retryAfterS(headers) });
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const found = events(buffer + value);
      buffer = found.rest;
      let answer = current.answer;
      for (const data of found.data) {
        const chunk = chunkOf(data);
        if (!chunk) continue;
        if (chunk.error) return end("failed", { error: chunk.error });
        if (chunk.text) {
          pieces.push(performance.now());
          answer += chunk.text;
        }
        if (chunk.finish) current = { ...current, finish: chunk.finish };
        if (chunk.usage) current = { ...current, usage: chunk.usage };
      }
      set({ answer, times: { ...current.times, pieces: [...pieces] } });
    }
    return end("done");
  };

  const ended = go().catch((error: unknown) => (abort.signal.aborted ? end("stopped") : end("failed", { error: error instanceof TypeError ? "The connection was lost before the answer was complete." : String(error) })));
  return { cancel: () => abort.abort(), ended };
}
