/** What the page knows of the live feed, as a pure function of what happened. No sockets, no clocks, no React. */

import { append, merge, pointOf } from "./history";
import { mergePatch } from "./patch";
import type { Away, Point, ServerMessage, Snapshot } from "./types";

type Connection = "connecting" | "open" | "reconnecting" | "signed_out" | "forbidden";

export interface PoolState {
  snapshot: Snapshot;
  history: readonly Point[];
  /** Whether the server's history is in it: before that, an empty past says nothing. */
  complete: boolean;
  /** A change is missing: the snapshot is the last good one until the server sends a new one. */
  gap: boolean;
}

export interface FeedState {
  connection: Connection;
  role: string;
  heartbeatS: number;
  /** Server's clock minus this browser's [s]. */
  clockOffset: number;
  /** This browser's clock at the last message [s]. */
  heardAt: number;
  /** When the next attempt to connect starts [s, this browser's clock]; 0 while connected. */
  retryAt: number;
  /** False while the server says that Redis does not answer. */
  stateAvailable: boolean;
  /** This browser's clock when the server said so [s]. */
  unavailableAt: number;
  /** What the server cannot see, as it last said. */
  away: readonly Away[];
  /** The configured pools in sight; undefined while the server has not said. */
  known?: readonly string[];
  /** Whether the server sends each pool's history without being asked; with many pools it does not. */
  histories: boolean;
  /** What is away, where the server refuses the socket for it. */
  refusal?: Away;
  /** The server answers plain requests, and its socket does not open. */
  blocked?: boolean;
  /** This browser's clock when the page first tried [s]. */
  openedAt: number;
  /** True once the server has said which pools there are. */
  welcomed: boolean;
  /** Pools the server named whose first snapshot is still to come. */
  expected: number;
  pools: Readonly<Record<string, PoolState>>;
}

export type FeedEvent =
  | { type: "connecting"; now: number }
  | { type: "refused"; away: Away }
  | { type: "blocked"; blocked: boolean }
  | { type: "message"; message: ServerMessage; now: number }
  | { type: "closed"; code: number; retryAt: number };

/** What the reducer asks of whoever owns the socket: the snapshot of one pool, or of every pool. */
export interface Step {
  state: FeedState;
  resync?: string | typeof ALL;
}

export const ALL = Symbol("all pools");

export const SIGNED_OUT = 4401;
export const FORBIDDEN = 4403;
export const STALE_AFTER_S = 5;

export const initialFeed: FeedState = {
  connection: "connecting",
  role: "",
  heartbeatS: 5,
  clockOffset: 0,
  heardAt: 0,
  retryAt: 0,
  stateAvailable: true,
  unavailableAt: 0,
  away: [],
  openedAt: 0,
  histories: true,
  welcomed: false,
  expected: 0,
  pools: {},
};

export function reduce(state: FeedState, event: FeedEvent): Step {
  switch (event.type) {
    case "connecting":
      return { state: { ...state, connection: state.welcomed ? "reconnecting" : "connecting", retryAt: 0, openedAt: state.openedAt || event.now } };
    case "refused":
      return { state: { ...state, refusal: event.away } };
    case "blocked":
      return { state: { ...state, blocked: event.blocked } };
    case "closed":
      if (event.code === SIGNED_OUT) return { state: { ...state, connection: "signed_out", retryAt: 0 } };
      if (event.code === FORBIDDEN) return { state: { ...state, connection: "forbidden", retryAt: 0, pools: {} } };
      return { state: { ...state, connection: "reconnecting", retryAt: event.retryAt } };
    case "message":
      return receive({ ...state, heardAt: event.now, connection: "open", retryAt: 0, refusal: undefined, blocked: false }, event.message, event.now);
  }
}

function receive(state: FeedState, message: ServerMessage, now: number): Step {
  switch (message.type) {
    case "hello": {
      const histories = message.histories ?? true;
      const kept = Object.entries(state.pools)
        .filter(([pool]) => message.pools.includes(pool))
        .map(([name, pool]) => [name, histories ? pool : { ...pool, complete: false }] as const);
      return {
        state: {
          ...state,
          welcomed: true,
          expected: message.pools.filter((pool) => !state.pools[pool]).length,
          role: message.role,
          heartbeatS: message.heartbeat_s,
          clockOffset: message.at - now,
          stateAvailable: true,
          away: message.sources?.away ?? [],
          known: message.sources?.pools ?? state.known,
          histories,
          pools: Object.fromEntries(kept),
        },
      };
    }
    case "sources":
      return { state: { ...state, away: message.away, known: message.pools ?? state.known } };
    case "heartbeat": {
      const next = { ...state, clockOffset: message.at - now };
      // Changes may have been lost without a later one to show the gap: ask rather than wait.
      const behind = Object.values(next.pools).some((pool) => ageOf(next, pool, now) > STALE_AFTER_S);
      return behind && next.stateAvailable ? { state: next, resync: ALL } : { state: next };
    }
    case "snapshot": {
      const snapshot = { ...message.data, seq: message.seq };
      const known = state.pools[message.pool];
      const history = append(known?.history ?? [], pointOf(snapshot));
      const expected = Math.max(0, state.expected - (known ? 0 : 1));
      const pool = { snapshot, history, complete: known?.complete ?? false, gap: false };
      return { state: { ...withPool(state, message.pool, pool), expected } };
    }
    case "history": {
      const pool = state.pools[message.pool];
      if (!pool) return { state };
      return { state: withPool(state, message.pool, { ...pool, history: merge(pool.history, message.frames), complete: true }) };
    }
    case "delta": {
      const pool = state.pools[message.pool];
      if (pool && message.seq <= pool.snapshot.seq) return { state }; // sent before the snapshot we already have
      if (!pool || message.seq !== pool.snapshot.seq + 1)
        return { state: pool ? withPool(state, message.pool, { ...pool, gap: true }) : state, resync: message.pool };
      const snapshot = { ...mergePatch(pool.snapshot, message.patch), seq: message.seq };
      return {
        state: withPool(state, message.pool, { ...pool, snapshot, history: append(pool.history, pointOf(snapshot)), gap: false }),
      };
    }
    case "removed": {
      const { [message.pool]: _, ...pools } = state.pools;
      return { state: { ...state, pools } };
    }
    case "error":
      if (message.code === "state_unavailable") return { state: { ...state, stateAvailable: false, unavailableAt: now } };
      if (message.code === "state_available") return { state: { ...state, stateAvailable: true } };
      return { state };
    default: // a newer server may say more than this page understands
      return { state };
  }
}

const withPool = (state: FeedState, name: string, pool: PoolState): FeedState => ({
  ...state,
  pools: { ...state.pools, [name]: pool },
});

export type Freshness =
  | { kind: "connecting" }
  | { kind: "live" }
  | { kind: "reconnecting"; ageS?: number; retryInS: number }
  | { kind: "stale"; ageS?: number; why: "no_updates" | "state_unavailable" | "gap" }
  | { kind: "signed_out" }
  | { kind: "forbidden" };

/** Seconds between a pool's figures and now, on the server's clock. */
export const ageOf = (state: FeedState, pool: PoolState, now: number): number =>
  Math.max(0, now + state.clockOffset - pool.snapshot.at);

/** How far what is on the screen can be trusted. `now` is this browser's clock [s]. */
export function freshness(state: FeedState, pool: PoolState | undefined, now: number): Freshness {
  const ageS = pool && ageOf(state, pool, now);
  switch (state.connection) {
    case "signed_out":
    case "forbidden":
      return { kind: state.connection };
    case "connecting":
      return { kind: "connecting" };
    case "reconnecting":
      return { kind: "reconnecting", ageS, retryInS: Math.max(0, state.retryAt - now) };
    case "open":
      // What the server itself has from before the outage may be a second old, and is not news.
      if (!state.stateAvailable || state.away.some(({ source }) => source === "redis")) return { kind: "stale", ageS, why: "state_unavailable" };
      // A leader is named before what it said last is old: nothing may look live beside that.
      if (pool && state.away.some((one) => one.source === "leader" && one.pool === pool.snapshot.pool)) return { kind: "stale", ageS, why: "no_updates" };
      if (ageS === undefined && state.away.length > 0) return { kind: "stale", why: "no_updates" };
      if (ageS === undefined) return { kind: state.expected > 0 ? "connecting" : "live" };
      if (ageS <= STALE_AFTER_S) return { kind: "live" };
      return { kind: "stale", ageS, why: pool?.gap ? "gap" : "no_updates" };
  }
}

/** Whether figures should look like the past. */
export const isStale = (f: Freshness): boolean =>
  f.kind === "stale" || f.kind === "signed_out" || (f.kind === "reconnecting" && (f.ageS ?? 0) > STALE_AFTER_S);
