/** What cannot be seen now, and since when: as the server says, and what the page finds out itself. Pure. */

import { ageOf, STALE_AFTER_S, type FeedState } from "./reducer";
import type { Away } from "./types";

export interface Outage {
  source: "server" | "redis" | "database" | "leader" | "rules" | "ledger" | "engine";
  /** Epoch seconds; missing where it has never been seen. */
  since?: number;
  /** It was away before anybody here could look. */
  atLeast?: boolean;
  pool?: string;
  backend?: string;
  /** The server answers, and its live feed does not open. */
  blocked?: boolean;
  /** A replica that the leader grants requests to, although its figures cannot be read. */
  serves?: boolean;
  /** A replica that was seen, and fails what it is asked for. */
  ejected?: boolean;
  /** Redis is there and refuses what it is asked: the code of its error. */
  refuses?: string;
}

/** A connection that is made again within this time is not worth a word. */
const PATIENCE_S = 3;

const SOURCES: readonly string[] = ["redis", "database", "leader", "rules"] satisfies Outage["source"][];

export const asOutage = (away: Away): Outage => ({ source: away.source as Outage["source"], since: away.since, ...(away.at_least ? { atLeast: true } : {}), ...(away.pool ? { pool: away.pool } : {}), ...(away.refuses ? { refuses: away.refuses } : {}) });

/** Replicas that do not answer, by the pools' snapshots; of a pool whose snapshot is old nothing can be said. */
function engines(state: FeedState, now: number): Outage[] {
  return Object.entries(state.pools).flatMap(([pool, held]) => {
    if (ageOf(state, held, now) > STALE_AFTER_S) return [];
    return Object.entries(held.snapshot.backends ?? {}).flatMap(([backend, row]): Outage[] => {
      const unseen = row.unseen_since !== undefined || row.state === "ejected" || row.state === "probing" || row.state === "unpaired";
      return unseen ? [{ source: "engine", pool, backend, ...(row.unseen_since !== undefined ? { since: row.unseen_since, ...(row.state === "ready" ? { serves: true } : {}) } : row.state === "ejected" ? { ejected: true, ...(row.down_since === undefined ? {} : { since: row.down_since }) } : {}) }] : [];
    });
  });
}

/** Pools whose leader cannot store what ended: the database is there, and takes no writes. */
function ledgers(state: FeedState, now: number): Outage[] {
  return Object.entries(state.pools).flatMap(([pool, held]): Outage[] => {
    const since = held.snapshot.ledger_since;
    return since === undefined || ageOf(state, held, now) > STALE_AFTER_S ? [] : [{ source: "ledger", pool, since }];
  });
}

/** `now` is this browser's clock [s]. What depends on something that is away itself is not told beside it. */
export function outagesOf(state: FeedState, now: number): Outage[] {
  if (state.connection === "signed_out" || state.connection === "forbidden") return [];
  const told = state.away.filter((away) => SOURCES.includes(away.source)).map(asOutage);
  if (state.connection !== "open") {
    const lostAt = state.heardAt || state.openedAt;
    if (!lostAt || now - lostAt < PATIENCE_S) return told;
    // A server that refuses the socket and says why is there; without a word from it nothing else is known either.
    return state.refusal ? [asOutage(state.refusal)] : [{ source: "server", since: lostAt + state.clockOffset, ...(state.heardAt ? {} : { atLeast: true }), ...(state.blocked ? { blocked: true } : {}) }];
  }
  if (!state.stateAvailable && !told.some((one) => one.source === "redis")) told.push({ source: "redis", since: state.unavailableAt + state.clockOffset });
  if (told.some((one) => one.source === "redis")) return told.filter((one) => one.source !== "leader" && one.source !== "rules");
  const written = told.some((one) => one.source === "database") ? [] : ledgers(state, now);
  return [...told, ...written, ...engines(state, now)];
}

const kindOf = ({ source, refuses, ejected, serves, since }: Outage): string => [source, refuses, ejected, serves, source === "engine" && since === undefined].join();

/** Outages of one kind together: what takes thirteen pools is one thing to know, and not thirteen. */
export function alike(outages: readonly Outage[]): Outage[][] {
  const kinds = new Map<string, Outage[]>();
  for (const outage of outages) kinds.set(kindOf(outage), [...(kinds.get(kindOf(outage)) ?? []), outage]);
  return [...kinds.values()];
}

/** Whether the feed has said what every pool does: before that nothing may be called healthy. */
export const isHeard = (state: FeedState): boolean =>
  state.connection === "open" && state.known !== undefined && state.known.every((pool) => state.pools[pool] !== undefined);

/** Whether what a pool does now can be said at all. */
export const isBlind = (outages: readonly Outage[], pool?: string): boolean =>
  outages.some(({ source, pool: of }) => source === "server" || source === "redis" || source === "database" || (source === "leader" && (pool === undefined || of === pool)));

/** The outage by which records of the past miss what ended last: nothing is read, published or stored. */
export const cutsPast = (outages: readonly Outage[], pool?: string): Outage | undefined =>
  outages.find(({ source, pool: of }) => source === "server" || source === "redis" || source === "database" || ((source === "leader" || source === "ledger") && (!pool || of === pool)));

/** The outage by which nobody can say whether an alert of this pool still holds. */
export const hidesAlert = (outages: readonly Outage[], pool?: string): Outage | undefined =>
  outages.find(({ source, pool: of }) => source === "server" || source === "redis" || source === "database" || ((source === "leader" || source === "rules") && (!pool || of === pool)));

/** The outage that hides a pool's live figures, if there is one. */
export const hides = (outages: readonly Outage[], pool?: string): Outage | undefined =>
  outages.find(({ source, pool: of }) => source === "server" || source === "redis" || (source === "leader" && (pool === undefined || of === pool)));
