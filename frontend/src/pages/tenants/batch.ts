/** What a list of batches says of each. Pure. */

import type { Batch } from "../../api/catalog";
import type { Tone } from "../../components/Badge";

const tones: Record<string, Tone> = { in_progress: "plain", completed: "good", failed: "bad", expired: "warn", cancelled: "warn", cancelling: "warn" };

export const toneOf = (status: string): Tone => tones[status] ?? "plain";

export const isOpen = (row: Pick<Batch, "status">): boolean => ["validating", "in_progress", "finalizing", "cancelling"].includes(row.status);

/** The share of lines that have a result; undefined while the lines were not counted. */
export const progress = (row: Pick<Batch, "total" | "completed" | "failed">): number | undefined => (row.total > 0 ? (row.completed + row.failed) / row.total : undefined);

/** "1,200 of 3,000 lines, 4 failed" */
export function lines(row: Pick<Batch, "total" | "completed" | "failed">): string {
  if (row.total === 0) return "not counted yet";
  const n = (value: number): string => value.toLocaleString("en-US");
  return `${n(row.completed + row.failed)} of ${n(row.total)} lines${row.failed ? `, ${n(row.failed)} failed` : ""}`;
}
