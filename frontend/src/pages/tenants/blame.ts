/** What a tenant's waits come to, in a sentence. Pure. */

import type { PoolWaits } from "../../api/neighbours";
import { percent, seconds, text } from "../../lib/format";

/** What each refusal comes from; any other lies in the request itself. */
export const CAUSES: Record<string, string> = {
  concurrency: "its own limit of requests at once",
  key_limit: "the limit of its key",
  user_limit: "the limit of one of its users",
  token_budget: "its own token budget",
  kv_budget: "its own share of the KV cache",
  quota_exceeded: "its own quota",
  budget_exceeded: "its own budget",
  too_long: "longer than the model's context",
  tenant_paused: "the tenant was paused",
  low_priority: "the pool was contended and other entitlements had more weight",
  queue_full: "the pool's queue was full",
  queue_timeout: "it waited as long as its tier permits",
  superseded: "it was late already, and a newer request of its own took its place",
  no_backend: "the pool had no backend that answered",
  no_adapter: "no backend had its adapter, and none could load it",
  rebuilding: "the pool's state was being rebuilt",
  state_unavailable: "Redis did not answer",
  shutting_down: "its gateway was shutting down",
};

export function blame(waits: PoolWaits, tenant: string): string {
  const time = text(seconds(waits.waited_s));
  const others = waits.held.filter((row) => row.tenant !== tenant);
  const own = waits.held.find((row) => row.tenant === tenant)?.share ?? 0;
  const [most] = others;
  // Known from the ledger alone: a backend may have been away, or the wait too short for a run to be seen in it.
  if (waits.held.length === 0) return waits.longest_s < 0.001 ? "Its requests waited less than a millisecond." : `Its requests waited ${time} while nothing ran.`;
  if (!most || own >= 0.5) return `Its requests waited ${time}, mostly for its own requests, which held ${text(percent(own))} of the slots in use.`;
  return `Of the other tenants, ${most.tenant} held the most slots: ${text(percent(most.share))} of those in use while its requests waited ${time} in total.`;
}
