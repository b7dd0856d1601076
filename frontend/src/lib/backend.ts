/** A replica's state as the feed says it (docs/reference/feed.md), for every page that shows one. */

import type { Tone } from "../components/Badge";

export const backendTones: Record<string, Tone> = { ready: "good", probing: "warn", draining: "warn", ejected: "bad", unpaired: "bad", asleep: "plain", waking: "plain" };

/** Whether it serves nobody on purpose: it sleeps, or starts because its pool slept. */
export const sleeps = (state: string | undefined): boolean => state === "asleep" || state === "waking";

/** Whether an operator took it out of service, be it still busy or not. */
export const outOfService = (state: string | undefined): boolean => state === "draining" || state === "drained";

/** The state to show of a backend in the catalog: what the pool's leader sees, unless the catalog knows better since. */
export function backendState(row: { draining: boolean; silent_since: string | null }, live: string | undefined): string {
  if (row.draining) return live === "drained" ? "drained" : "draining";
  return live ?? (row.silent_since ? "silent" : "unknown");
}
