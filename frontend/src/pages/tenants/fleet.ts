/** Every pool at a glance: how it stands, and why. Pure. */

import { columns, type Column } from "../../charts/columns";
import type { Tone } from "../../components/Badge";
import type { Point, Snapshot, TierFigures } from "../../feed/types";
import { outOfService } from "../../lib/backend";
import { count, percent, seconds, text } from "../../lib/format";
import { doubtful, fallsShort, late, MIN_JUDGED, missedSlo, missing, ms, over, refusedShare, SLO_LOW, slotsOf, targetsOf, tiersAsked, type Limits, type Room, type Target } from "../overview/verdict";

/** From worst to best, which is the order of the page. Nothing is "healthy" that was not seen, and an idle pool is idle, not healthy. */
export const LEVELS = ["failing", "unknown", "at risk", "asleep", "idle", "healthy"] as const;
export type Level = (typeof LEVELS)[number];
export const levelTones: Record<Level, Tone> = { failing: "bad", unknown: "plain", "at risk": "warn", asleep: "plain", idle: "plain", healthy: "good" };

const SPARK_S = 300;

export interface Replicas {
  ready: number;
  ejected: number;
  asleep: number;
  /** Taken out of service by an operator. */
  drained: number;
  /** Not seen, or not ready for another reason. */
  other: number;
  all: number;
}

export interface Standing {
  level: Level;
  why: string;
}

export interface PoolStanding extends Standing {
  pool: string;
  /** It recovers: the level is the one it had until then, for that reason, and `why` is of now. */
  was?: { until: string; why: string };
}

/** Of what recovers the present first: "failing until 3 s ago; now: 90.1 % in time of 120 asked; before: 89.9 % in time, should be 90.0 %". */
export const reasonOf = ({ level, why, was }: Pick<PoolStanding, "level" | "why" | "was">): string => (was ? `${level} until ${was.until}; now: ${why}; before: ${was.why}` : why);

export interface FleetRow extends PoolStanding {
  model: string;
  /** Undefined: nothing is known of it now. */
  snapshot: Snapshot | undefined;
  replicas: Replicas | undefined;
  room: Room | undefined;
  kv: number | undefined;
  tokens: number | undefined;
  /** Tokens per second of the last five minutes. */
  spark: Column;
  /** The SLO that is missed most, or else the strictest. */
  worst: Target | undefined;
}

export function replicasOf({ backends = {}, scope }: Snapshot): Replicas | undefined {
  if (scope === "own") return undefined; // where things run is no business of tenants
  const found: Replicas = { ready: 0, ejected: 0, asleep: 0, drained: 0, other: 0, all: 0 };
  for (const { state, unseen_since: unseen } of Object.values(backends)) {
    found.all++;
    if (state === "ejected") found.ejected++;
    else if (state === "asleep") found.asleep++;
    else if (outOfService(state)) found.drained++;
    else if (state === "ready" && unseen === undefined) found.ready++;
    else found.other++;
  }
  return found;
}

/** "2 of 3 ready, 1 ejected" */
export function replicasText(replicas: Replicas): string {
  const parts = [replicas.asleep === replicas.all && replicas.all > 0 ? "" : `${replicas.ready} of ${replicas.all} ready`];
  if (replicas.ejected) parts.push(`${replicas.ejected} ejected`);
  if (replicas.asleep) parts.push(`${replicas.asleep} asleep`);
  if (replicas.drained) parts.push(`${replicas.drained} drained`);
  if (replicas.other) parts.push(`${replicas.other} not seen`);
  return parts.filter(Boolean).join(", ");
}

/** The TTFT or TTLT that is missed most in proportion, or else the strictest one that was measured. */
function worstOf(snapshot: Snapshot): Target | undefined {
  const { ttft, ttlt } = targetsOf(snapshot);
  const both = [ttft, ttlt].filter((one) => one !== undefined);
  const excess = (one: Target) => (one.ms === undefined ? -1 : one.ms / 1000 / one.s);
  const sure = (one: Target) => Number(late(one) !== undefined && one.asked >= MIN_JUDGED);
  return both.sort((a, b) => sure(b) - sure(a) || excess(b) - excess(a))[0];
}

/** How a pool stands by what its snapshot, its alert rules and its replicas say. */
export function standingOf(snapshot: Snapshot | undefined, hidden: string | undefined, limits: Limits): Standing {
  if (snapshot === undefined || hidden !== undefined) return { level: "unknown", why: hidden ?? "not heard of yet" };
  const { slo = {}, queue = {}, at } = snapshot;
  const replicas = replicasOf(snapshot);
  const room = slotsOf(snapshot);
  const lost = room.lost.filter(({ id }) => snapshot.backends?.[id]?.state !== "asleep");
  const worst = worstOf(snapshot);
  const low = limits.slo_attainment ?? SLO_LOW;
  // What is lost explains the rest and comes first: a phone shows the beginning of a sentence.
  const gone: string[] = [];
  const failing: string[] = [];
  const risks: string[] = [];
  // Without any replica only a pool that may have none says in how long it would serve; with one that failed it says nothing.
  if (replicas?.all === 0 && snapshot.wakes_in_s !== undefined) return { level: "asleep", why: `would serve in ${text(seconds(snapshot.wakes_in_s))}` };
  if (replicas && replicas.all > 0 && replicas.asleep === replicas.all) return { level: "asleep", why: snapshot.wakes_in_s === undefined ? "its replicas sleep" : `would serve in ${text(seconds(snapshot.wakes_in_s))}` };
  const states = snapshot.scope === "own" ? Object.values(snapshot.backends ?? {}).map(({ state }) => state) : [];
  if (states.length > 0 && !states.some((state) => state === "ready" || state === "unknown")) {
    if (states.includes("asleep")) return { level: "asleep", why: "its replicas sleep" };
    failing.push("no replica serves"); // how many there are is no business of tenants
  }
  if (replicas?.all === 0) failing.push("no replica: nothing can run");
  else if (replicas && replicas.ready === 0 && room.usable === 0) failing.push(`no replica serves: ${replicasText(replicas)}`);
  else if (lost.length > 0) gone.push(missing({ ...room, lost }, at));
  const missed = missedSlo(snapshot, low);
  const doubt = missed === undefined ? doubtful(snapshot, low) : undefined;
  if (missed !== undefined) failing.push(`${missed}, should be ${text(percent(low))}`);
  if (worst && late(worst)) (worst.asked >= MIN_JUDGED ? failing : risks).push(`${worst.tier} ${worst.of} p95 ${ms(worst.ms!)}, SLO ${text(seconds(worst.s))}`);
  if (over(queue.oldest_s, limits.queue_age)) failing.push(`the oldest request waits ${text(seconds(queue.oldest_s))}`);
  const refused = refusedShare(slo);
  if (doubt !== undefined) risks.push(`${doubt}, should be ${text(percent(low))}`);
  if (refused !== undefined && limits.refusals !== undefined && fallsShort(1 - refused, slo.asked ?? 0, 1 - limits.refusals)) failing.push(`${text(percent(refused))} refused`);
  for (const [id, { engine_waiting: inside }] of Object.entries(snapshot.backends ?? {}))
    if (over(inside, limits.engine_queue)) risks.push(`${count(inside)} wait inside ${id}`);
  if (snapshot.ledger_since !== undefined) risks.push("requests that end are not stored");
  const why = [...gone, ...failing, ...risks].join("; ");
  if (failing.length) return { level: "failing", why };
  if (why) return { level: "at risk", why };
  const [lowest] = tiersAsked(snapshot);
  const least = lowest && lowest.attainment < (slo.attainment ?? 0) ? `; lowest: ${lowest.name} ${text(percent(lowest.attainment))} of ${count(lowest.asked)}` : "";
  if (slo.asked) return { level: "healthy", why: `${text(percent(slo.attainment))} in time of ${count(slo.asked)} asked${least}${slo.left ? `; ${count(slo.left)} left before anything was due` : ""}` };
  const { completed, refused: turned, failed, cancelled } = snapshot.rates ?? {};
  if (!snapshot.running && !completed && failed) return { level: "at risk", why: "requests failed and none was answered, 1 min" };
  if (snapshot.running || queue.depth || completed || turned || failed || cancelled) return { level: "healthy", why: "serves; no request with an SLO ended, 1 min" };
  return { level: "idle", why: "no request, 1 min" };
}

/** The row of a pool that stands so. Of one that is unknown nothing is shown. */
export function fleetRow(standing: PoolStanding, model: string, state: { snapshot: Snapshot; history: readonly Point[] } | undefined): FleetRow {
  const seen = standing.level === "unknown" ? undefined : state?.snapshot;
  const { tokens_per_s: tokens = {}, kv_tokens: kv } = seen ?? {};
  return {
    ...standing,
    model,
    snapshot: seen,
    replicas: seen && replicasOf(seen),
    room: seen && slotsOf(seen),
    kv: kv && seen?.kv_used !== undefined ? seen.kv_used / kv : undefined,
    tokens: tokens.input === undefined && tokens.output === undefined ? undefined : (tokens.input ?? 0) + (tokens.output ?? 0),
    spark: seen ? columns(state!.history, seen.at - SPARK_S, seen.at, [(point) => (point.in === undefined && point.out === undefined ? undefined : (point.in ?? 0) + (point.out ?? 0))]).values[0]! : [],
    worst: seen && worstOf(seen),
  };
}

export const tiersOf = (snapshot: Snapshot | undefined): [string, TierFigures][] => Object.entries(snapshot?.slo?.by_tier ?? {}).filter(([, tier]) => tier.asked);

export const tally = (rows: readonly Pick<Standing, "level">[]): [Level, number][] => LEVELS.flatMap((level): [Level, number][] => {
  const found = rows.filter((row) => row.level === level).length;
  return found ? [[level, found]] : [];
});

/** "2 failing, 1 healthy" */
export const tallied = (rows: readonly Pick<Standing, "level">[]): string => tally(rows).map(([level, n]) => `${n} ${level}`).join(", ");

/** Whether a pool has what was typed in its name, model, level or reason. */
export function fits(row: FleetRow, typed: string): boolean {
  const said = `${row.pool} ${row.model} ${row.level} ${reasonOf(row)}`.toLowerCase();
  return typed.toLowerCase().split(/\s+/).every((word) => said.includes(word));
}

/** Why these tiers miss their time between tokens, by pool: where no replica keeps it. */
export const tbtWhys = (snapshots: readonly Snapshot[], tiers: readonly string[]): string[] => snapshots.flatMap((snapshot) => tiersOf(snapshot).flatMap(([name, tier]) => (tier.tbt_why && tiers.includes(name) ? [`missed in ${snapshot.pool}: ${tier.tbt_why}`] : [])));
