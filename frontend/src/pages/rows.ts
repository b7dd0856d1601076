/** Rows of the overview's table, from a snapshot. Pure. */

import type { Counts, EntitlementFigures, Percentiles, Snapshot, TenantFigures } from "../feed/types";
import { NONE, total } from "../lib/format";
import { judgedOf } from "./overview/verdict";

export interface Row {
  key: string;
  name: string;
  tenant: string;
  tier?: string;
  state?: string;
  waiting?: number;
  running?: number;
  limit?: number;
  input?: number;
  output?: number;
  budget?: number;
  ttft: Percentiles;
  ttlt: Percentiles;
  attainment?: number;
  /** Of how many that is, where clients left before anything was due. */
  judged?: string;
  violations?: number;
  refused?: Counts;
  failed?: number;
  paused?: boolean;
  weight?: number;
  debt?: number;
  burst?: number;
  share?: number;
}

export type Grouping = "entitlement" | "tenant";

const entitlementRow = ([key, e]: [string, EntitlementFigures]): Row => ({
  key,
  name: key,
  tenant: e.tenant ?? "",
  tier: e.tier,
  state: e.state,
  waiting: e.waiting,
  running: e.running,
  limit: e.concurrency,
  input: e.tokens_per_s?.input,
  output: e.tokens_per_s?.output,
  budget: e.budget_tokens_per_s,
  ttft: e.ttft_ms ?? {},
  ttlt: e.ttlt_ms ?? {},
  attainment: e.attainment,
  judged: judgedOf(e),
  violations: e.violations,
  refused: e.refused,
  failed: e.failed,
  paused: e.paused,
  weight: e.weight,
  debt: e.debt,
  share: e.share,
  burst: e.burst,
});

function tenantRow([key, t]: [string, TenantFigures], limits: Map<string, number>): Row {
  return {
    key,
    name: key,
    tenant: key,
    waiting: t.waiting,
    running: t.running,
    limit: t.concurrency ?? limits.get(key),
    input: t.tokens_per_s?.input,
    output: t.tokens_per_s?.output,
    ttft: t.latency?.ttft_ms ?? {},
    ttlt: t.latency?.ttlt_ms ?? {},
    attainment: t.slo?.attainment,
    judged: judgedOf(t.slo ?? {}),
    violations: t.slo?.violations,
    refused: t.refusals,
  };
}

export function rows(snapshot: Snapshot, grouping: Grouping): Row[] {
  const entitlements = Object.entries(snapshot.entitlements ?? {});
  if (grouping === "entitlement") return entitlements.map(entitlementRow);
  const limits = new Map<string, number>();
  for (const [, e] of entitlements) if (e.tenant) limits.set(e.tenant, (limits.get(e.tenant) ?? 0) + (e.concurrency ?? 0));
  return Object.entries(snapshot.tenants ?? {}).map((entry) => tenantRow(entry, limits));
}

export type SortKey = "name" | "tier" | "waiting" | "running" | "tokens" | "ttft" | "ttlt" | "attainment" | "violations" | "refused" | "weight" | "debt";

const measures: Record<SortKey, (row: Row) => number | string | undefined> = {
  name: (r) => r.name,
  tier: (r) => r.tier,
  waiting: (r) => r.waiting,
  running: (r) => r.running,
  tokens: (r) => r.input === undefined || r.output === undefined ? undefined : r.input + r.output,
  ttft: (r) => r.ttft.p95,
  ttlt: (r) => r.ttlt.p95,
  attainment: (r) => r.attainment,
  violations: (r) => r.violations,
  refused: (r) => total(r.refused),
  weight: (r) => r.weight,
  debt: (r) => r.debt,
};

/** A sorted copy; rows without the measure come last either way, equal ones by name so that they stay put. */
export function sorted(list: readonly Row[], key: SortKey, descending: boolean): Row[] {
  const measure = measures[key];
  const sign = descending ? -1 : 1;
  return [...list].sort((a, b) => {
    const x = measure(a);
    const y = measure(b);
    if (x === undefined || y === undefined) {
      if (x !== y) return x === undefined ? 1 : -1;
    } else if (x !== y) {
      return (x < y ? -1 : 1) * sign;
    }
    return a.name.localeCompare(b.name);
  });
}

/** Tokens that an entitlement had, as a multiple of its part of its class's: "0.4×". */
export const shareText = (share: number | undefined): string => (share === undefined ? NONE : `${Number(share.toPrecision(2))}×`);

/** What else a weight is beside. */
export const standingOf = ({ burst, share }: Pick<Row, "burst" | "share">): string | undefined =>
  [...(burst ? [`burst ${burst.toFixed(2)}`] : []), ...(share === undefined ? [] : [`share ${shareText(share)} of its part of the class`])].join(", ") || undefined;
