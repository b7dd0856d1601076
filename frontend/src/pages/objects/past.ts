/** What an object's page asks of its past. Pure. */

import type { Filters } from "../../api/requests";
import type { Happened } from "../../api/events";

export const RANGES = [
  { value: "1", label: "1 h" },
  { value: "24", label: "24 h" },
  { value: "168", label: "7 d" },
] as const;
export type Range = (typeof RANGES)[number]["value"];

export const rangeOf = (text: string | null): Range => RANGES.find(({ value }) => value === text)?.value ?? "24";

/** The time shown, to whole minutes, so that looking again within one asks the same question. */
export function spanOf(range: Range, nowMs: number): { from: string; to: string } {
  const to = Math.ceil(nowMs / 60_000) * 60_000;
  return { from: new Date(to - Number(range) * 3_600_000).toISOString(), to: new Date(to).toISOString() };
}

/** The explorer with an object's filter and time. */
export const requestsOf = (filters: Partial<Filters>): string => `/requests?${new URLSearchParams(Object.entries(filters).filter(([, value]) => value !== ""))}`;

/** Events that are about an object: its own, or all of its pool. */
export const eventsAbout = (events: readonly Happened[], subject: string | undefined): Happened[] => events.filter((event) => subject === undefined || event.subject === subject || event.line.split(/[\s:,]+/).includes(subject));

/** "0.42 s of 1 s": a measured p95 against what is promised, and whether it is kept; undefined where either is unknown. */
export function kept(p95: number | null | undefined, promised: number | null | undefined): boolean | undefined {
  return p95 == null || promised == null ? undefined : p95 <= promised;
}
