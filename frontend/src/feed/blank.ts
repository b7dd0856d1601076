/** A pool of which nothing is known now: its names and limits without a single figure. Pure. */

import type { BackendFigures, EntitlementFigures, Snapshot, TenantFigures, TierFigures } from "./types";

const each = <T, U>(rows: Record<string, T> | undefined, change: (row: T) => U): Record<string, U> => Object.fromEntries(Object.entries(rows ?? {}).map(([name, row]) => [name, change(row)]));

const entitlement = ({ tenant, tier, class: of, concurrency, budget_tokens_per_s, paused }: EntitlementFigures): EntitlementFigures => defined({ tenant, tier, class: of, concurrency, budget_tokens_per_s, paused });
const tier = ({ ttft_s, tbt_s, ttlt_s }: TierFigures): TierFigures => defined({ ttft_s, tbt_s, ttlt_s });
const backend = ({ slots }: BackendFigures): BackendFigures => defined({ state: "unknown", slots });

function defined<T extends object>(row: { [K in keyof T]?: T[K] | undefined }): T {
  return Object.fromEntries(Object.entries(row).filter(([, value]) => value !== undefined)) as T;
}

/** What of a snapshot outlives it: what is configured. Of everything that was measured nothing is left. */
export const blank = (snapshot: Snapshot): Snapshot => ({
  ...defined<Snapshot>({ pool: snapshot.pool, seq: snapshot.seq, at: snapshot.at, model: snapshot.model, scope: snapshot.scope, left_out: snapshot.left_out }),
  slo: { by_tier: each(snapshot.slo?.by_tier, tier) },
  tenants: each(snapshot.tenants, ({ concurrency }) => defined<TenantFigures>({ concurrency })),
  entitlements: each(snapshot.entitlements, entitlement),
  backends: each(snapshot.backends, backend),
});
