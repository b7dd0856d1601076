/** How every pool stands now, for whoever asks: the strip above each page, *Pools* and *Alerts* say the same. */

import { useQuery } from "@tanstack/react-query";
import { useMemo, useRef } from "react";
import { get } from "../../api/client";
import type { AlertRule } from "../../api/operate";
import { unseenSince } from "../../components/Outages";
import { useFeed, useNow, useOutages } from "../../feed/live";
import { hides, isHeard, type Outage } from "../../feed/outages";
import { freshness, isStale, type FeedState } from "../../feed/reducer";
import { user } from "../../lib/page";
import { limitsOf } from "../overview/verdict";
import { LEVELS, standingOf, tallied, type Level, type Standing } from "./fleet";

export interface PoolStanding extends Standing {
  pool: string;
}

const staff = user.role === "admin" || user.role === "operator";

/** The rules whose thresholds say what is too much; members are not told of them. */
export const useAlertRules = () =>
  useQuery({ queryKey: ["alerts", "rules"], queryFn: ({ signal }) => get<AlertRule[]>("alert-rules", {}, signal), enabled: staff, staleTime: 60_000 });

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

/** Worked out once a second, and with each outage: two hundred pools send two hundred changes a second. Undefined: the
 * server has not said yet what there is. */
export function useStandings(): PoolStanding[] | undefined {
  const rules = useAlertRules();
  const feed = useFeed();
  const outages = useOutages();
  const now = useNow();
  const heard = useRef(feed);
  heard.current = feed;
  const ready = isHeard(feed) || outages.length > 0;
  return useMemo(() => (ready ? standings(heard.current, outages, now, rules.data) : undefined), [ready, outages, now, rules.data]);
}

export interface Verdict {
  level: Level;
  /** What is wrong, and where; of what is well, how much of it. */
  text: string;
  /** Where one sees more. */
  to: string;
  label: string;
}

/** All pools in one sentence, the worst first. `away`: what cannot be seen; nothing is well beside it. Undefined: there is nothing to judge. */
export function verdictOf(pools: readonly PoolStanding[], away: readonly Outage[], openAlerts: number): Verdict | undefined {
  const [worst, ...others] = [...pools].sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level));
  const rest = others.length > 0 ? ` · other pools: ${tallied(others)}` : "";
  const of = (level: Level, pool: string, why: string): Verdict => ({ level, text: `${pool}: ${why}${rest}`, to: `/pools/${encodeURIComponent(pool)}`, label: "This pool" });
  if (worst?.level === "failing") return of("failing", worst.pool, worst.why);
  const blind = away.find(({ source }) => source !== "engine");
  if (worst?.level === "unknown" && blind?.source === "leader") return of("unknown", worst.pool, worst.why);
  if (blind) return { level: "unknown", text: BLIND[blind.source] ?? "not all can be seen", to: "/pools", label: "Pools" };
  if (worst === undefined) return undefined;
  if (worst.level === "unknown" || worst.level === "at risk") return of(worst.level, worst.pool, worst.why);
  const silent = away.find(({ source }) => source === "engine");
  if (silent?.pool) return of("at risk", silent.pool, `${silent.backend ?? "a replica"} does not answer`);
  if (openAlerts > 0) return { level: "at risk", text: `${openAlerts === 1 ? "one alert is" : `${openAlerts} alerts are`} open`, to: "/alerts", label: "Alerts" };
  const well = pools.some(({ level }) => level === "well");
  return { level: well ? "well" : worst.level, text: pools.length === 1 ? `${worst.pool}: ${worst.why}` : `${pools.length} pools: ${tallied(pools)}`, to: "/pools", label: "Pools" };
}

const BLIND: Partial<Record<Outage["source"], string>> = {
  server: "the server cannot be reached",
  redis: "Redis does not answer",
  database: "the database does not answer",
  leader: "a pool has no scheduler",
  rules: "alert rules are not evaluated",
  ledger: "requests that end are not stored",
};
