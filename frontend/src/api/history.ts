/** A pool's past, as /api/v1/live/history gives it (docs/reference/feed.md). */

import type { Point } from "../feed/types";
import { get } from "./client";

export interface Past {
  pool: string;
  step_s: number;
  frames: Point[];
}

/** `until` [epoch s]; 0: now. */
export const pastOf = (pool: string, minutes: number, until: number, signal: AbortSignal): Promise<Past> =>
  get("live/history", { pool, minutes: String(minutes), until: until ? String(until) : "" }, signal);
