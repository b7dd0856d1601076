/** How every pool stands now, for whoever asks: the strip above each page, *Pools* and *Alerts* say the same. Pure. */

import type { AlertRule } from "../../api/operate";
import { unseenSince } from "../../components/Outages";
import { hides, type Outage } from "../../feed/outages";
import { freshness, isStale, type FeedState } from "../../feed/reducer";
import { limitsOf } from "../overview/verdict";
import { LEVELS, reasonOf, standingOf, tallied, type Level, type PoolStanding } from "./fleet";

/** Why nothing of a pool can be known now. */
export function hiddenNow(feed: FeedState, outages: readonly Outage[], pool: string, now: number): Outage | undefined {
  const held = feed.pools[pool];
  return hides(outages, pool) ?? (held && isStale(freshness(feed, held, now)) ? { since: held.snapshot.at, source: "leader" } : undefined);
}

/** Pools that are known, whether or not something was heard of them. */
export function standings(feed: FeedState, outages: readonly Outage[], now: number, rules: readonly AlertRule[] | undefined): PoolStanding[] {
  return [...new Set([...(feed.known ?? []), ...Object.keys(feed.pools)])].sort().map((pool) => {
    const hidden = hiddenNow(feed, outages, pool, now);
    return { pool, ...standingOf(feed.pools[pool]?.snapshot, hidden && unseenSince(hidden), limitsOf(rules, pool)) };
  });
}

/** What pools are judged by, to be compared: other thresholds make another level of the same figures. */
export const thresholds = (rules: readonly AlertRule[] | undefined): string =>
  JSON.stringify((rules ?? []).map(({ kind, threshold, pool, tenant, enabled }) => [kind, threshold, pool, tenant, enabled]));

export interface Verdict {
  level: Level;
  /** What is wrong, and where; of what is healthy, how much of it. */
  text: string;
  /** The pool that is named, where one is. */
  pool?: string;
  /** Where one sees more. */
  to: string;
  label: string;
}

/** What is wrong now before what was so a moment ago; that never hides what is unknown. */
const place = ({ level, was }: PoolStanding): number => (was ? Math.max(LEVELS.indexOf(level), LEVELS.indexOf("unknown")) + 0.5 : LEVELS.indexOf(level));

/** All pools in one sentence, the worst first; of several as bad the one that was `named` before, so that two around a
 * threshold do not take turns. `away`: what cannot be seen; nothing is healthy beside it. Undefined: there is nothing to judge. */
export function verdictOf(pools: readonly PoolStanding[], away: readonly Outage[], openAlerts: number, named?: string): Verdict | undefined {
  const sorted = [...pools].sort((a, b) => place(a) - place(b) || (a.pool < b.pool ? -1 : 1));
  const blind = away.find(({ source }) => source !== "engine");
  // While something cannot be seen, only what fails now may be named before it.
  const kept = blind ? undefined : sorted.find(({ pool, level }) => pool === named && level === sorted[0]!.level);
  const worst = kept ?? sorted[0];
  const others = sorted.filter((one) => one !== worst);
  const rest = others.length > 0 ? ` · other pools: ${tallied(others)}` : "";
  const of = (level: Level, pool: string, why: string): Verdict => ({ level, text: `${pool}: ${why}${rest}`, pool, to: `/pools/${encodeURIComponent(pool)}`, label: "This pool" });
  if (worst?.level === "failing" && !worst.was) return of("failing", worst.pool, worst.why);
  if (worst?.level === "unknown" && blind?.source === "leader") return of("unknown", worst.pool, worst.why);
  if (blind?.blocked) return { level: "unknown", text: "the live feed does not open", to: "/pools", label: "Pools" };
  if (blind) return { level: "unknown", text: (blind.refuses ? `Redis refuses what it is asked (${blind.refuses})` : BLIND[blind.source]) ?? "not all can be seen", to: "/pools", label: "Pools" };
  if (worst === undefined) return undefined;
  if (worst.level === "failing" || worst.level === "unknown" || worst.level === "at risk") return of(worst.level, worst.pool, reasonOf(worst));
  const silent = away.find(({ source }) => source === "engine");
  if (silent?.pool) return of("at risk", silent.pool, `${silent.backend ?? "a replica"} ${silent.ejected ? "was ejected" : silent.serves ? "serves, its figures are not known" : "does not answer"}`);
  if (openAlerts > 0) return { level: "at risk", text: `${openAlerts === 1 ? "one alert is" : `${openAlerts} alerts are`} open`, to: "/alerts", label: "Alerts" };
  const healthy = pools.some(({ level }) => level === "healthy");
  return { level: healthy ? "healthy" : worst.level, text: pools.length === 1 ? `${worst.pool}: ${worst.why}` : `${pools.length} pools: ${tallied(pools)}`, to: "/pools", label: "Pools" };
}

const BLIND: Partial<Record<Outage["source"], string>> = {
  server: "the server cannot be reached",
  redis: "Redis does not answer",
  database: "the database does not answer",
  leader: "a pool has no scheduler",
  rules: "alert rules are not evaluated",
  ledger: "requests that end are not stored",
};
