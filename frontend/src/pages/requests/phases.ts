/** A request's life as phases on a time line. Pure. */

import type { LedgerRow } from "../../api/requests";

export interface Phase {
  name: "admission" | "waiting" | "engine" | "prefill" | "decode";
  label: string;
  startMs: number; // after the request was received
  ms: number;
}

const at = (iso: string | null): number | undefined => (iso === null ? undefined : Date.parse(iso));

/** Consecutive phases from received to done; what it never came to is left out. */
export function phases(row: LedgerRow, engine?: { queue_ms: number; prefill_ms: number } | null): Phase[] {
  const received = Date.parse(row.received_at);
  const queued = at(row.queued_at);
  const granted = at(row.granted_at);
  const first = at(row.first_token_at);
  const done = Date.parse(row.done_at);
  const marks: [Phase["name"], string, number | undefined][] = [
    ["admission", queued === undefined && granted === undefined ? "until the answer" : "admission", received],
    ["waiting", "waiting for a slot", queued],
    ["prefill", first === undefined ? (row.streamed ? "in the engine, without a first token" : "prompt and answer, not streamed") : "prompt until the first token", granted],
    ["decode", "generating", first],
  ];
  const known = marks.filter((mark): mark is [Phase["name"], string, number] => mark[2] !== undefined);
  return known
    .map(([name, label, start], i) => ({ name, label, startMs: start - received, ms: Math.max(0, (known[i + 1]?.[2] ?? done) - start) }))
    .filter((phase) => phase.ms > 0 || phase.name !== "admission")
    .flatMap((phase): Phase[] => {
      const ran = Math.min(phase.ms, (row.ran_before_s ?? 0) * 1000);
      if (phase.name === "waiting" && ran > 0)
        return [
          { ...phase, ms: phase.ms - ran },
          { ...phase, name: "engine", label: row.interruptions ? "prefill that was interrupted" : "in replicas that failed it", startMs: phase.startMs + phase.ms - ran, ms: ran },
        ];
      if (phase.name !== "prefill" || !engine?.queue_ms) return [phase];
      const behind = Math.min(phase.ms, engine.queue_ms);
      return [
        { ...phase, name: "engine", label: "behind other prompts in the engine", ms: behind },
        { ...phase, label: first === undefined ? `${phase.label}, its own part` : "its own prompt until the first token", startMs: phase.startMs + behind, ms: phase.ms - behind },
      ];
    });
}
