import type { BackendFigures, EntitlementFigures, EntitlementPoint, LatencyFigures, Point, Snapshot, TenantFigures, TenantPoint, TierFigures, TierPoint } from "./types";

/** Points kept per pool: fifteen minutes at one a second, as the server keeps. */
const HISTORY_POINTS = 900;
const TENANTS_PER_POINT = 50;

/** Drops members without a value, so that "missing" stays missing. */
function present<T extends object>(object: T): T {
  for (const key of Object.keys(object) as (keyof T)[]) if (object[key] === undefined) delete object[key];
  return object;
}

const percentiles = (latency: LatencyFigures | undefined) => ({
  ttft_p50: latency?.ttft_ms?.p50,
  ttft_p95: latency?.ttft_ms?.p95,
  ttft_p99: latency?.ttft_ms?.p99,
  ttlt_p50: latency?.ttlt_ms?.p50,
  ttlt_p95: latency?.ttlt_ms?.p95,
  ttlt_p99: latency?.ttlt_ms?.p99,
  tbt_p50: latency?.tbt_ms?.p50,
  tbt_p95: latency?.tbt_ms?.p95,
  tbt_p99: latency?.tbt_ms?.p99,
  queue_p95: latency?.queue_ms?.p95,
});

function entitlementPoint(e: EntitlementFigures): EntitlementPoint {
  const share = { running: e.running || undefined, waiting: e.waiting || undefined, tokens: e.served_per_s || undefined, kv: e.kv_used || undefined };
  const shown = Object.values(share).some((value) => value !== undefined) || e.debt || e.burst;
  return present({ tenant: e.tenant, ...share, ...(shown ? { weight: e.weight, debt: e.debt, burst: e.burst } : {}) });
}

const tierPoint = (t: TierFigures): TierPoint =>
  present({
    violations: t.violations,
    total: t.total,
    ttft_p95: t.latency?.ttft_ms?.p95,
    tbt_p95: t.latency?.tbt_ms?.p95,
    ttlt_p95: t.latency?.ttlt_ms?.p95,
    queue_p95: t.latency?.queue_ms?.p95,
  });

const backendPoint = (b: BackendFigures) =>
  present({ gpu: b.gpu_util, memory: b.gpu_mem_total_bytes && b.gpu_mem_used_bytes !== undefined ? b.gpu_mem_used_bytes / b.gpu_mem_total_bytes : undefined });

/** Rows of a table as points, those with nothing to show left out; missing where there are none. */
function table<T, P extends object>(rows: Record<string, T> | undefined, make: (row: T) => P, least = 1): Record<string, P> | undefined {
  const found = Object.entries(rows ?? {}).map(([name, row]) => [name, make(row)] as const).filter(([, point]) => Object.keys(point).length >= least);
  return found.length ? Object.fromEntries(found) : undefined;
}

function tenantPoint(tenant: TenantFigures): TenantPoint {
  return present({
    waiting: tenant.waiting,
    running: tenant.running,
    in: tenant.tokens_per_s?.input,
    out: tenant.tokens_per_s?.output,
    completed: tenant.rates?.completed,
    refused: tenant.rates?.refused,
    failed: tenant.rates?.failed,
    cancelled: tenant.rates?.cancelled,
    ...percentiles(tenant.latency),
    attainment: tenant.slo?.attainment,
    violations: tenant.slo?.violations,
  });
}

const activity = (t: TenantPoint): number =>
  (t.waiting ?? 0) + (t.running ?? 0) + (t.out ?? 0) + (t.completed ?? 0) + (t.refused ?? 0);

/** What a chart remembers of a snapshot; the client's side of telemetry/feed/history.py. */
export function pointOf(snapshot: Snapshot): Point {
  const gpus = Object.values(snapshot.backends ?? {}).flatMap((b) => (b.gpu_util === undefined ? [] : [b.gpu_util]));
  const tenants = Object.entries(snapshot.tenants ?? {})
    .map(([name, figures]) => [name, tenantPoint(figures)] as const)
    .filter(([, t]) => activity(t) > 0 || t.attainment !== undefined)
    .sort(([, a], [, b]) => activity(b) - activity(a))
    .slice(0, TENANTS_PER_POINT);
  return present({
    at: snapshot.at,
    depth: snapshot.queue?.depth,
    running: snapshot.running,
    slots: snapshot.slots,
    kv: snapshot.kv_tokens ? (snapshot.kv_used ?? 0) / snapshot.kv_tokens : undefined,
    in: snapshot.tokens_per_s?.input,
    out: snapshot.tokens_per_s?.output,
    arrived: snapshot.rates?.arrived,
    completed: snapshot.rates?.completed,
    refused: snapshot.rates?.refused,
    failed: snapshot.rates?.failed,
    cancelled: snapshot.rates?.cancelled,
    ...percentiles(snapshot.latency),
    kv_tokens: snapshot.kv_tokens || undefined,
    attainment: snapshot.slo?.attainment,
    violations: snapshot.slo?.violations,
    gpu: gpus.length ? gpus.reduce((a, b) => a + b, 0) / gpus.length : undefined,
    refusals: snapshot.refusals,
    tenants: Object.fromEntries(tenants),
    entitlements: table(snapshot.entitlements, entitlementPoint, 2) ?? {},
    rest: snapshot.rest,
    tiers: table(Object.fromEntries(Object.entries(snapshot.slo?.by_tier ?? {}).filter(([, t]) => t.total)), tierPoint),
    backends: table(snapshot.backends, backendPoint),
    parts: table(snapshot.queue?.parts, (waiting) => ({ waiting })),
  });
}

/** Appends one point; a point that is not newer than the last is the same moment again and replaces it. */
export function append(history: readonly Point[], point: Point): readonly Point[] {
  let end = history.length;
  while (end > 0 && history[end - 1]!.at >= point.at) end--;
  return [...history.slice(Math.max(0, end + 1 - HISTORY_POINTS), end), point];
}

/** Server history under what this page saw itself: nothing twice, in order of time. */
export function merge(history: readonly Point[], frames: readonly Point[]): readonly Point[] {
  const seconds = new Map<number, Point>();
  for (const point of frames) seconds.set(Math.round(point.at), point);
  for (const point of history) seconds.set(Math.round(point.at), point);
  return [...seconds.values()].sort((a, b) => a.at - b.at).slice(-HISTORY_POINTS);
}
