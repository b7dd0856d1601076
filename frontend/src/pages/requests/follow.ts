/** Requests that are followed as they end. Pure. */

import type { LedgerRow, Tail } from "../../api/requests";

/** Rows that stay on the page; the oldest go first. */
export const KEPT = 500;

export interface Followed {
  /** Where the next question goes on. */
  place: string;
  /** As they ended, the newest first. */
  rows: readonly LedgerRow[];
  /** Rows of these below which some are missing. */
  gaps: readonly string[];
  /** Older ones were here and went. */
  cut: boolean;
}

/** What was followed so far, with an answer on top. Rows that are there already were sent once more. */
export function grown(old: Followed | undefined, answer: Tail): Followed {
  if (!old) return { place: answer.place, rows: answer.results, gaps: [], cut: false };
  const known = new Set(old.rows.map((row) => row.request_id));
  const fresh = answer.results.filter((row) => !known.has(row.request_id));
  const all = [...fresh, ...old.rows];
  const rows = all.slice(0, KEPT);
  const last = fresh.at(-1);
  const gaps = [...(answer.whole || !last || old.rows.length === 0 ? [] : [last.request_id]), ...old.gaps].filter((id) => rows.some((row) => row.request_id === id));
  return { place: answer.place, rows, gaps, cut: old.cut || all.length > KEPT };
}
