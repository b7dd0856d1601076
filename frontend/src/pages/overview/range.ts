/** Which part of the past the charts show, and where it comes from. Pure. */

import type { Point } from "../../feed/types";

export const WINDOWS = [
  { value: 5, label: "5 min" },
  { value: 15, label: "15 min" },
  { value: 60, label: "1 h" },
  { value: 360, label: "6 h" },
  { value: 1440, label: "24 h" },
  { value: 10_080, label: "7 d" },
] as const;

const SHORTEST_S = 60;
const LIVE_S = 890; // what the feed's own history holds

export interface Range {
  from: number;
  to: number;
}

/** The time shown: a zoom, a moment someone linked to, or the last minutes. */
export function rangeOf(minutes: number, at: number, moment: number | null, zoom: Range | null, oldest: number | undefined): Range {
  if (zoom) return zoom;
  const to = moment ?? at;
  const from = to - minutes * 60;
  if (moment !== null || minutes > 15) return { from, to };
  // A young history fills the width; what lies before it is not shown as empty time.
  return { from: Math.max(from, Math.min(oldest ?? to, to - SHORTEST_S)), to };
}

/** What has to be asked of the server for a range: nothing where the live history has it. */
export function question(range: Range, at: number, moving: boolean): { minutes: number; until: number } | null {
  if (range.from >= at - LIVE_S && range.to <= at + 1) return null;
  const minutes = Math.min(10_080, Math.max(1, Math.ceil((range.to - range.from) / 60)));
  return { minutes, until: moving ? 0 : Math.ceil(range.to) };
}

/** The server's steps, then what came since: the page's own seconds, thinned to the same steps. */
export function joined(past: readonly Point[], step: number, live: readonly Point[]): Point[] {
  let last = past.at(-1)?.at ?? -Infinity;
  const newer: Point[] = [];
  for (const point of live) {
    if (point.at - last < step * 0.95) continue;
    newer.push(point);
    last = point.at;
  }
  return [...past, ...newer];
}

/** The address of what is on the screen. */
export function linkTo(href: string, range: Range): string {
  const url = new URL(href);
  url.searchParams.set("at", String(Math.round(range.to)));
  url.searchParams.set("window", String(Math.max(1, Math.ceil((range.to - range.from) / 60))));
  url.searchParams.delete("wall");
  return url.toString();
}
