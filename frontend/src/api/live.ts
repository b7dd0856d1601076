/** Rows that the feed left out of a snapshot, as /api/v1/live gives them (docs/reference/feed.md). */

import type { Snapshot } from "../feed/types";
import { get } from "./client";

export interface Wanted {
  pool?: string;
  tenant?: string;
  search?: string;
  order?: string;
}

export const liveRows = (wanted: Wanted, signal: AbortSignal): Promise<{ at: number; pools: Record<string, Snapshot> }> => get("live", { ...wanted }, signal);
