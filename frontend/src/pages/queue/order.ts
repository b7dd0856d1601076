/** What the queue's page says of a request that waits. Pure. */

import type { Part, Waiting } from "../../api/queue";
import { NONE, seconds, text } from "../../lib/format";

/** "in 3.2 s", "now", or why there is no time. */
export function startIn(row: Waiting, at: number): string {
  if (row.start_s === undefined) return "beyond the preview";
  const left = row.start_s - at;
  return left < 0.5 ? "now" : `in ${text(seconds(left))}`;
}

/** Whether it would start too late for its promise, or give up before it starts. */
export function outlook(row: Waiting): "late" | "expires" | "in time" | "unknown" {
  if (row.expires_s !== undefined && (row.start_s === undefined || row.start_s > row.expires_s)) return "expires";
  if (row.start_s === undefined) return "unknown";
  return row.deadline_s !== undefined && row.start_s > row.deadline_s ? "late" : "in time";
}

export const isRelegated = (row: Waiting): boolean => (row.why ?? "").includes("relegated");

/** "1 to 100 tokens" of a queue of similar prompts. */
export const borders = (part: Part): string => (part.low === undefined || part.high === undefined ? NONE : `${part.low} to ${part.high} tokens`);

/** Parts with prompts' lengths, and the others; empty ones that say nothing are left out. */
export function split(parts: readonly Part[]): { lengths: Part[]; bands: Part[] } {
  return {
    lengths: parts.filter((part) => part.low !== undefined && (part.waiting > 0 || part.kind === "queue")),
    bands: parts.filter((part) => part.low === undefined),
  };
}
