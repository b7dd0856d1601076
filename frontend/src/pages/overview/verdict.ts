/** What the figures of a pool are measured by: targets, thresholds, what is missing, and change. Pure. */

import type { Pick } from "../../charts/columns";
import type { Counts, Point, SloFigures, Snapshot } from "../../feed/types";
import { sleeps } from "../../lib/backend";
import { age, count, duration, percent, text, total } from "../../lib/format";

/** Thresholds of the alert rules that apply to a pool, by kind; the strictest where there are several. */
export type Limits = Partial<Record<string, number>>;

/** Attainment below this is marked where no rule says otherwise: the first of the alert rules shipped. */
export const SLO_LOW = 0.9;
/** Whether a table marks it; an unknown one is not low. */
export const isLow = (attainment: number | undefined): boolean => attainment !== undefined && attainment < SLO_LOW;

const BACK_S = 300;
const AROUND_S = 15;
/** Kinds of rule that open below their threshold. */
const BELOW: readonly string[] = ["slo_attainment"];

export const ms = (value: number): string => text(duration(value));
export const points = (share: number): string => `${(share * 100).toFixed(1)} points`;

interface Rule {
  kind: string;
  threshold: number | null;
  pool: string;
  tenant: string;
  enabled: boolean;
}

export function limitsOf(rules: readonly Rule[] | undefined, pool: string): Limits {
  const limits: Limits = {};
  for (const rule of rules ?? []) {
    if (!rule.enabled || rule.threshold === null || rule.tenant || (rule.pool && rule.pool !== pool)) continue;
    const known = limits[rule.kind];
    limits[rule.kind] = known === undefined ? rule.threshold : BELOW.includes(rule.kind) ? Math.max(known, rule.threshold) : Math.min(known, rule.threshold);
  }
  return limits;
}

/** Against the mean around five minutes ago: "+12 in 5 min"; undefined where that time was not seen, or nothing changed. */
export function change(history: readonly Point[], at: number, pick: Pick, format: (value: number) => string): string | undefined {
  const now = history.at(-1);
  const value = now && at - now.at < AROUND_S ? pick(now) : undefined;
  const then = history.filter((point) => Math.abs(point.at - (at - BACK_S)) <= AROUND_S).flatMap((point) => pick(point) ?? []);
  if (value === undefined || then.length === 0) return undefined;
  const by = value - then.reduce((a, b) => a + b, 0) / then.length;
  const shown = format(Math.abs(by));
  return shown === format(0) ? undefined : `${by < 0 ? "\u2212" : "+"}${shown} in 5 min`;
}

export interface Room {
  /** As configured, whether or not it answers. */
  all: number;
  usable: number;
  missing: number;
  /** In how many seconds a pool that sleeps is expected to serve. */
  wakes: number | undefined;
  /** Replicas whose slots are missing, and since when. */
  lost: { id: string; since: number | undefined; drained: boolean }[];
}

/** Whether a pool has replicas, and all of them are out: none is ready, unknown, or asleep until a request comes. */
const outOfService = ({ backends }: Snapshot): boolean => {
  const states = Object.values(backends ?? {}).map(({ state }) => state);
  return states.length > 0 && !states.some((state) => state === "ready" || state === "unknown" || sleeps(state));
};

/** Slots of a pool: what is configured, and what of it can be used. Members see the sum of their own limits, or that no replica serves. */
export function slotsOf(snapshot: Snapshot): Room {
  const backends = Object.entries(snapshot.backends ?? {}).filter(([, b]) => !sleeps(b.state));
  if (snapshot.scope === "own" || backends.every(([, b]) => b.slots === undefined)) {
    const all = snapshot.slots ?? 0;
    const gone = snapshot.scope === "own" && outOfService(snapshot) ? all : 0;
    return { all, usable: all - gone, missing: gone, wakes: snapshot.wakes_in_s, lost: [] };
  }
  const lost = backends.filter(([, b]) => b.down_since !== undefined || (b.unseen_since !== undefined && !b.generates) || (b.state !== "ready" && b.state !== "unknown"));
  const all = backends.reduce((sum, [, b]) => sum + (b.slots ?? 0), 0);
  const gone = lost.reduce((sum, [, b]) => sum + (b.slots ?? 0), 0);
  return { all, usable: all - gone, missing: gone, wakes: snapshot.wakes_in_s, lost: lost.map(([id, b]) => ({ id, since: b.down_since ?? b.unseen_since, drained: b.state === "draining" || b.state === "drained" })) };
}

/** "asleep: the next request waits about 30 s"; while some wait, that it wakes. */
export const asleep = (wakes: number, waiting: number | undefined): string =>
  waiting ? `waking: serves in about ${age(wakes)}` : `asleep: the next request waits about ${age(wakes)}`;

/** "16 of 24 slots: engine-1 lost 70 s ago"; which one is no business of members. */
export function missing(room: Room, at: number): string {
  const [first, ...others] = room.lost;
  const one = first === undefined ? "no replica serves" : `${first.id} ${first.drained ? "is drained" : first.since === undefined ? "does not answer" : `lost ${age(Math.max(0, at - first.since))} ago`}`;
  return `${count(room.usable)} of ${count(room.all)} slots: ${one}${others.length ? ` and ${others.length} more` : ""}`;
}

/** "50 % of the slots"; while some wait beside free slots, what they wait for: "50 % of the slots, 8 kept for baselines". */
export function filled({ running = 0, headroom = 0, prefill_bound, queue }: Snapshot, { all, usable }: Room): string {
  const free = queue?.depth ? Math.max(0, usable - running) : 0;
  const kept = Math.min(headroom, free);
  const why = free && prefill_bound ? ", prefill-bound" : kept ? `, ${count(kept)} kept for baselines` : "";
  return `${text(percent(running / all))} of the slots${why}`;
}

export interface Target {
  tier: string;
  /** Which latency it is of. */
  of: "TTFT" | "TTLT";
  s: number;
  /** p95 of the tier's requests; undefined: there were none. */
  ms: number | undefined;
  asked: number;
}

/** The tier's target that is missed most, or else the strictest. */
function target(snapshot: Snapshot, key: "ttft_s" | "ttlt_s", measure: "ttft_ms" | "ttlt_ms"): Target | undefined {
  const all = Object.entries(snapshot.slo?.by_tier ?? {}).flatMap(([tier, row]): Target[] => (row[key] === undefined ? [] : [{ tier, of: key === "ttft_s" ? "TTFT" : "TTLT", s: row[key], ms: row.latency?.[measure]?.p95, asked: row.asked ?? 0 }]));
  const excess = (one: Target): number => (one.ms === undefined ? 0 : one.ms / 1000 / one.s);
  const sure = (one: Target): number => Number(excess(one) > 1) * (1 + Number(one.asked >= MIN_JUDGED));
  return all.sort((a, b) => sure(b) - sure(a) || (excess(a) > 1 ? excess(b) - excess(a) : a.s - b.s))[0];
}

export const targetsOf = (snapshot: Snapshot) => ({ ttft: target(snapshot, "ttft_s", "ttft_ms"), ttlt: target(snapshot, "ttlt_s", "ttlt_ms") });

export const late = (one: Target | undefined): "bad" | undefined => (one?.ms !== undefined && one.ms > one.s * 1000 ? "bad" : undefined);

export const over = (value: number | undefined, limit: number | undefined): "bad" | undefined => (value !== undefined && limit !== undefined && value > limit ? "bad" : undefined);

export const refusedShare = ({ asked, total }: SloFigures): number | undefined => (asked && total !== undefined ? (asked - total) / asked : undefined);

/** Requests of the last minute: a share of fewer may be chance. As many as alert rules need. */
export const MIN_JUDGED = 10;
/** Of fewer, what is missed counts where it would be as bad in one of twenty such minutes of a pool that keeps its threshold. */
const CHANCE = 0.05;

/** Whether a share is too low, by the rule of alert rules (`falls_short` in scheduling/core/ledger/slo.py). */
export function fallsShort(attainment: number, asked: number, low: number): boolean {
  if (asked >= MIN_JUDGED) return attainment < low;
  const kept = Math.round(attainment * asked);
  let likely = 0;
  for (let n = 0, ways = 1; n <= kept; ways = (ways * (asked - n)) / (n + 1), n++) likely += ways * low ** n * (1 - low) ** (asked - n);
  return asked > 0 && likely <= CHANCE;
}

/** Attainment of one tier; of an entitlement where a member sees no tiers. */
export interface Share {
  name: string;
  attainment: number;
  asked: number;
}

/** The tiers that were asked, the worst first. What all requests together had says little of them: the tier with most
 * requests outweighs the others. */
export function tiersAsked({ slo, entitlements, scope }: Snapshot): Share[] {
  const rows: Record<string, { attainment?: number; asked?: number }> = (scope === "own" ? entitlements : slo?.by_tier) ?? {};
  return Object.entries(rows)
    .flatMap(([name, { attainment, asked = 0 }]): Share[] => (attainment === undefined || asked === 0 ? [] : [{ name, attainment, asked }]))
    .sort((a, b) => a.attainment - b.attainment || (a.name < b.name ? -1 : 1));
}

const inTime = ({ attainment, asked }: Omit<Share, "name">): string => (attainment === 0 && asked < MIN_JUDGED ? `none in time of ${count(asked)} asked` : `${text(percent(attainment))} in time of ${count(asked)} asked`);

/** What is missed where attainment should be at least `low`: "premium 71.4 % in time of 35 asked, and 1 more tier". Of no
 * single tier: "85.0 % in time of 350 asked". Undefined where nothing is missed that is known. */
export function missedSlo(snapshot: Snapshot, low: number): string | undefined {
  const [worst, ...others] = tiersAsked(snapshot).filter(({ attainment, asked }) => fallsShort(attainment, asked, low));
  const { attainment, asked = 0 } = snapshot.slo ?? {};
  if (worst === undefined) return attainment !== undefined && fallsShort(attainment, asked, low) ? inTime({ attainment, asked }) : undefined;
  const more = others.length ? `, and ${count(others.length)} more ${snapshot.scope === "own" ? "entitlement" : "tier"}${others.length > 1 ? "s" : ""}` : "";
  return `${worst.name} ${inTime(worst)}${more}`;
}

/** What is too little to fail a pool and too much to call it healthy: all requests of a tier late, refused or failed, or
 * all together below the threshold, where these are few. */
export function doubtful(snapshot: Snapshot, low: number): string | undefined {
  const none = tiersAsked(snapshot).find(({ attainment }) => attainment === 0);
  const { attainment, asked = 0 } = snapshot.slo ?? {};
  if (none) return `${none.name} ${inTime(none)}`;
  return attainment !== undefined && attainment < low ? inTime({ attainment, asked }) : undefined;
}

/** Of how many an attainment is, where others left: "2 judged of 10, 8 left". Undefined where nobody left unjudged. */
export function judgedOf({ asked = 0, left = 0 }: SloFigures): string | undefined {
  return left ? `${count(asked)} judged of ${count(asked + left)}, ${count(left)} left` : undefined;
}

/** "98.0 % of those served; 46 missed, 150 refused of 900". What failed has missed its SLO as well. */
export function attained(slo: SloFigures): string {
  const { attainment_served: served, asked, total, violations } = slo;
  const judged = judgedOf(slo);
  const retries = slo.retries ? `; ${count(slo.retries)} are retries, ${text(percent(slo.attainment_first))} in time at the first attempt` : "";
  if (!asked) return judged ?? "no request with an SLO, 1 min";
  if (judged && slo.left! > asked) return judged;
  const refused = asked - (total ?? asked);
  return `${served === undefined ? "none served" : `${text(percent(served))} of those served`}; ${count(violations ?? 0)} missed, ${count(refused)} refused of ${count(asked)}${judged ? `; ${count(slo.left!)} left` : ""}${retries}`;
}

/** Who waits, and how many requests of tenants whose rows were not sent. */
export function waitingIn(snapshot: Snapshot): { byTenant: Counts; others: number } {
  const byTenant = Object.fromEntries(Object.entries(snapshot.tenants ?? {}).map(([name, tenant]) => [name, tenant.waiting ?? 0]));
  const others = snapshot.left_out?.tenants ? Math.max(0, (snapshot.queue?.depth ?? 0) - total(byTenant)) : 0;
  return { byTenant, others };
}
