/** What tenants and entitlements use now, added up over the pools of the live feed. Pure. */

import type { EntitlementFigures, Snapshot } from "../../feed/types";

export interface LiveUse {
  running: number;
  waiting: number;
  /** Sequences that may run at once, over its entitlements. */
  limit: number;
  tokensPerS: number;
  refused: number;
  violations: number;
  judged: number;
  asked: number;
  /** Requests whose clients left before anything was due: not judged. */
  left: number;
}

const add = (counts: Record<string, number> | undefined): number => Object.values(counts ?? {}).reduce((a, b) => a + b, 0);

/** By tenant. */
export function useByTenant(snapshots: readonly Snapshot[]): Map<string, LiveUse> {
  const found = new Map<string, LiveUse>();
  const of = (tenant: string): LiveUse => {
    let use = found.get(tenant);
    if (!use) found.set(tenant, (use = { running: 0, waiting: 0, limit: 0, tokensPerS: 0, refused: 0, violations: 0, judged: 0, asked: 0, left: 0 }));
    return use;
  };
  for (const snapshot of snapshots) {
    for (const [name, t] of Object.entries(snapshot.tenants ?? {})) {
      const use = of(name);
      use.running += t.running ?? 0;
      use.waiting += t.waiting ?? 0;
      use.limit += t.concurrency ?? 0;
      use.tokensPerS += (t.tokens_per_s?.input ?? 0) + (t.tokens_per_s?.output ?? 0);
      use.refused += add(t.refusals);
      use.violations += t.slo?.violations ?? 0;
      use.judged += t.slo?.total ?? 0;
      use.asked += t.slo?.asked ?? t.slo?.total ?? 0;
      use.left += t.slo?.left ?? 0;
    }
    for (const e of Object.values(snapshot.entitlements ?? {})) {
      if (!e.tenant || leavesOut(snapshot, e.tenant) || snapshot.tenants?.[e.tenant]?.concurrency !== undefined) continue;
      of(e.tenant).limit += e.concurrency ?? 0;
    }
  }
  return found;
}

/** Whether a pool may have figures of a tenant whose row was not sent: what is not there is not zero. */
const leavesOut = (snapshot: Snapshot, tenant: string): boolean => (snapshot.left_out?.tenants ?? 0) > 0 && snapshot.tenants?.[tenant] === undefined;

/** Those of a tenant's pools whose row of it was not sent, and so are in none of its sums. */
export const leftOut = (tenant: string, pools: readonly string[], snapshots: readonly Snapshot[]): string[] =>
  snapshots.flatMap((snapshot) => (pools.includes(snapshot.pool) && leavesOut(snapshot, tenant) ? [snapshot.pool] : []));

/** Those of a tenant's pools that cannot be seen, and so are in none of its sums. */
export function unseen(pools: readonly string[], snapshots: readonly Snapshot[]): string[] {
  const seen = new Set(snapshots.map((snapshot) => snapshot.pool));
  return [...new Set(pools)].filter((pool) => !seen.has(pool)).sort();
}

export function entitlementsOf(snapshots: readonly Snapshot[]): Map<string, EntitlementFigures> {
  return new Map(snapshots.flatMap((snapshot) => Object.entries(snapshot.entitlements ?? {})));
}

/** Kept of all asked over the pools, 0..1, as scheduling/core/ledger/slo.py has it for each; undefined while nothing was to be kept. */
export const attainment = (use: LiveUse | undefined): number | undefined => (use?.asked ? (use.judged - use.violations) / use.asked : undefined);
