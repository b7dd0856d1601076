/** What a tenant's waits come to, in a sentence. Pure. */

import type { PoolWaits } from "../../api/neighbours";
import { percent, seconds, text } from "../../lib/format";

/** What each refusal comes from; any other lies in the request itself. */
export const CAUSES: Record<string, string> = {
  concurrency: "its own limit of requests at once",
  token_budget: "its own token budget",
  kv_budget: "its own share of the KV cache",
  quota_exceeded: "its own quota",
  too_long: "longer than the model takes",
  tenant_paused: "it was paused",
  low_priority: "the pool was contended and others weighed more",
  queue_full: "the pool's queue was full",
  queue_timeout: "waited as long as its tier allows",
  no_backend: "the pool had no backend that answered",
  rebuilding: "the pool's state was being rebuilt",
  state_unavailable: "Redis did not answer",
  shutting_down: "its gateway was stopping",
};

export function blame(waits: PoolWaits, tenant: string): string {
  const time = text(seconds(waits.waited_s));
  const others = waits.held.filter((row) => row.tenant !== tenant);
  const own = waits.held.find((row) => row.tenant === tenant)?.share ?? 0;
  const [most] = others;
  if (waits.held.length === 0) return `It waited for ${time} while nothing ran at all.`;
  if (!most || own >= 0.5) return `It waited for ${time}, mostly for itself: ${text(percent(own))} of the slots in use were its own.`;
  return `${most.tenant} stood most in its way: while it waited, ${time} in all, ${most.tenant} held ${text(percent(most.share))} of the slots in use.`;
}
