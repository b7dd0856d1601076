import { expect, it } from "vitest";
import type { Outage } from "../../feed/outages";
import { initialFeed, type FeedState } from "../../feed/reducer";
import type { Snapshot } from "../../feed/types";
import type { PoolStanding } from "./fleet";
import { standings, thresholds, verdictOf } from "./standings";

const NOW = 1000;
const snapshot = (pool: string, changes: Partial<Snapshot> = {}): Snapshot => ({
  pool, seq: 1, at: NOW, running: 1, slots: 8, queue: { depth: 0, oldest_s: 0 }, slo: { attainment: 1, asked: 10, total: 10 }, backends: { [`${pool}-1`]: { state: "ready", slots: 8 } }, ...changes,
});
const feed = (snapshots: Snapshot[], known: string[]): FeedState => ({
  ...initialFeed, connection: "open", welcomed: true, known, pools: Object.fromEntries(snapshots.map((one) => [one.pool, { snapshot: one, history: [], complete: true, gap: false }])),
});
const pool = (name: string, level: PoolStanding["level"], why = "why"): PoolStanding => ({ pool: name, level, why });
const away = (source: Outage["source"], of?: string): Outage => ({ source, since: NOW - 60, ...(of ? { pool: of } : {}) });

it("a pool that was named and not heard of is unknown, and an old snapshot is not the present", () => {
  const found = standings(feed([snapshot("llama"), snapshot("old", { at: NOW - 60 })], ["llama", "old", "new"]), [], NOW, []);
  expect(found.map(({ pool, level }) => [pool, level])).toEqual([["llama", "healthy"], ["new", "unknown"], ["old", "unknown"]]);
});

it("a pool without a leader is unknown, the others are seen", () => {
  const found = standings(feed([snapshot("llama"), snapshot("qwen")], ["llama", "qwen"]), [away("leader", "qwen")], NOW, []);
  expect(found.map(({ level }) => level)).toEqual(["healthy", "unknown"]);
  expect(verdictOf(found, [away("leader", "qwen")], 0)).toMatchObject({ level: "unknown", to: "/pools/qwen" });
});

it("thresholds of the pool's rules are applied, also those about an engine's own queue", () => {
  const rule = { kind: "engine_queue", threshold: 5, pool: "", tenant: "", enabled: true } as never;
  const [found] = standings(feed([snapshot("llama", { backends: { "gpu-1": { state: "ready", slots: 8, engine_waiting: 9 } } })], ["llama"]), [], NOW, [rule]);
  expect(found).toMatchObject({ level: "at risk", why: "9 wait inside gpu-1" });
});

it("the worst pool is named with its reason, and the others are counted", () => {
  const verdict = verdictOf([pool("a", "healthy"), pool("b", "failing", "36 % in time"), pool("c", "at risk")], [], 0);
  expect(verdict).toMatchObject({ level: "failing", text: "b: 36 % in time · other pools: 1 at risk, 1 healthy", to: "/pools/b" });
});

it("nothing is healthy while something cannot be seen, whatever it is", () => {
  for (const source of ["server", "redis", "database", "rules", "ledger", "leader"] as const) expect(verdictOf([pool("a", "healthy")], [away(source)], 0)!.level, source).toBe("unknown");
  expect(verdictOf([], [away("redis")], 0)!.level).toBe("unknown");
  expect(verdictOf([], [{ ...away("redis"), refuses: "OOM" }], 0)!.text).toBe("Redis refuses what it is asked (OOM)");
});

it("what fails is said also while something else cannot be seen", () => {
  expect(verdictOf([pool("a", "failing")], [away("rules")], 0)!.level).toBe("failing");
});

it("an open alert is no good state, and an idle installation is idle", () => {
  expect(verdictOf([pool("a", "healthy")], [], 2)).toMatchObject({ level: "at risk", text: "2 alerts are open", to: "/alerts" });
  expect(verdictOf([pool("a", "idle"), pool("b", "healthy")], [], 0)).toMatchObject({ level: "healthy", text: "2 pools: 1 idle, 1 healthy" });
  expect(verdictOf([pool("a", "idle", "no request, 1 min")], [], 0)).toMatchObject({ level: "idle", text: "a: no request, 1 min" });
});

it("nothing is healthy while a replica does not answer", () => {
  const silent = { ...away("engine", "a"), backend: "a-1" };
  expect(verdictOf([pool("a", "healthy")], [silent], 0)).toMatchObject({ level: "at risk", text: "a: a-1 does not answer", to: "/pools/a" });
  expect(verdictOf([pool("a", "healthy")], [{ ...silent, serves: true }], 0)).toMatchObject({ text: "a: a-1 serves, its figures are not known" });
  expect(verdictOf([pool("a", "healthy")], [{ ...silent, ejected: true }], 0)).toMatchObject({ text: "a: a-1 was ejected" });
});

const was = { until: "3 s ago", why: "89.9 % in time, should be 90.0 %" };

it("of a pool that recovers the present is said first, then why it was worse", () => {
  const verdict = verdictOf([{ ...pool("a", "failing", "90.1 % in time of 120 asked"), was }, pool("b", "healthy")], [], 0);
  expect(verdict).toMatchObject({ level: "failing", text: "a: failing until 3 s ago; now: 90.1 % in time of 120 asked; before: 89.9 % in time, should be 90.0 % · other pools: 1 healthy", to: "/pools/a" });
});

it("what fails now is named before what did a moment ago", () => {
  expect(verdictOf([{ ...pool("a", "failing"), was }, pool("b", "failing", "36 % in time")], [], 0)!.text).toBe("b: 36 % in time · other pools: 1 failing");
});

it("of pools as bad the one that was named stays, however the others swing", () => {
  const swings = (name: string) => [pool(name, "failing", "now"), { ...pool(name, "failing"), was }];
  const [a, aWas] = swings("a") as [PoolStanding, PoolStanding];
  const [b, bWas] = swings("b") as [PoolStanding, PoolStanding];
  let named: string | undefined;
  for (const pools of [[b, a], [aWas, b], [a, bWas], [b, a]]) {
    named = verdictOf(pools, [], 0, named)!.pool;
    expect(named).toBe("a");
  }
  expect(verdictOf([pool("a", "healthy"), b], [], 0, "a")!.pool).toBe("b");
  expect(verdictOf([pool("a", "at risk"), b], [], 0, "a")!.pool).toBe("b");
});

it("a pool that was named and recovers hides neither what is unknown nor, beside an outage, what fails", () => {
  const before = { ...pool("a", "failing"), was };
  expect(verdictOf([before, pool("b", "unknown")], [], 0, "a")!.pool).toBe("b");
  expect(verdictOf([before, pool("b", "failing", "36 % in time")], [away("rules")], 0, "a")).toMatchObject({ level: "failing", pool: "b" });
});

it("what failed a moment ago is named before what is at risk, and never hides what is unknown", () => {
  const before = { ...pool("a", "failing"), was };
  expect(verdictOf([pool("b", "at risk"), before], [], 0)!.level).toBe("failing");
  expect(verdictOf([before, pool("b", "unknown")], [], 0)).toMatchObject({ level: "unknown", to: "/pools/b" });
  for (const source of ["server", "database", "rules", "ledger"] as const) expect(verdictOf([before], [away(source)], 0)!.level, source).toBe("unknown");
});

it("thresholds are other ones if one of them, what it applies to or whether it is on has changed, not if an alert opens", () => {
  const rule = { kind: "slo_attainment", threshold: 0.9, pool: "", tenant: "", enabled: true, open: 0 };
  const of = (changes: object) => thresholds([{ ...rule, ...changes } as never]);
  expect(of({ open: 2 })).toBe(of({}));
  for (const changed of [{ threshold: 0.8 }, { pool: "a" }, { enabled: false }]) expect(of(changed)).not.toBe(of({}));
});

it("without a pool there is nothing to judge", () => {
  expect(verdictOf([], [], 0)).toBeUndefined();
});
