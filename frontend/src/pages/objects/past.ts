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

/** The time shown, to whole steps of its charts (there are 60), so that looking again within one asks the same question. */
export function spanOf(range: Range, nowMs: number): { from: string; to: string } {
  const step = Number(range) * 60_000;
  const to = Math.ceil(nowMs / step) * step;
  return { from: new Date(to - 60 * step).toISOString(), to: new Date(to).toISOString() };
}

/** A fixed time in the address; none while the page follows the present. */
export function zoomOf(query: URLSearchParams): { from: string; to: string } | null {
  const [from, to] = [Date.parse(query.get("from") ?? ""), Date.parse(query.get("to") ?? "")];
  return from < to ? { from: new Date(from).toISOString(), to: new Date(to).toISOString() } : null;
}

/** The explorer with an object's filter and time. */
export const requestsOf = (filters: Partial<Filters>): string => `/requests?${new URLSearchParams(Object.entries(filters).filter(([, value]) => value !== ""))}`;

/** Events that are about an object: its own, or all of its pool. */
export const eventsAbout = (events: readonly Happened[], subject: string | undefined): Happened[] => events.filter((event) => subject === undefined || event.subject === subject || event.line.split(/[\s:,]+/).includes(subject));

/** "0.42 s of 1 s": a measured p95 against what is promised, and whether it is kept; undefined where either is unknown. */
export function kept(p95: number | null | undefined, promised: number | null | undefined): boolean | undefined {
  return p95 == null || promised == null ? undefined : p95 <= promised;
}
