import { expect, it } from "vitest";
import type { Snapshot } from "../../feed/types";
import { fits, fleetRow, replicasOf, replicasText, standingOf, tally, tbtWhys } from "./fleet";

const snapshot = (changes: Partial<Snapshot> = {}): Snapshot => ({
  pool: "llama", seq: 1, at: 1000, running: 4, slots: 16, queue: { depth: 0, oldest_s: 0 },
  slo: { attainment: 0.99, attainment_served: 0.99, asked: 100, total: 100, violations: 1, by_tier: { premium: { ttft_s: 1, asked: 60, total: 60, attainment: 0.99, latency: { ttft_ms: { p95: 400 } } } } },
  backends: { "gpu-1": { state: "ready", slots: 8 }, "gpu-2": { state: "ready", slots: 8 } },
  ...changes,
});
const standing = (changes: Partial<Snapshot> = {}, limits = {}) => standingOf(snapshot(changes), undefined, limits);

it("a pool is healthy only if requests with an SLO were served in time, or it serves without one", () => {
  expect(standing()).toEqual({ level: "healthy", why: "99.0 % in time of 100 asked" });
  expect(standing({ slo: {} }).level).toBe("healthy");
  expect(standing({ slo: { attainment: 1, asked: 2, total: 2, left: 8 } }).why).toBe("100 % in time of 2 asked; 8 left before anything was due");
});

it("a pool that nobody asks is idle, not healthy", () => {
  expect(standing({ slo: {}, running: 0 })).toEqual({ level: "idle", why: "no request, 1 min" });
});

it("what cannot be seen is unknown and has no figure", () => {
  expect(standingOf(snapshot(), "cannot be seen since 14:02", {})).toEqual({ level: "unknown", why: "cannot be seen since 14:02" });
  expect(standingOf(undefined, undefined, {}).level).toBe("unknown");
  const row = fleetRow({ pool: "llama", level: "unknown", why: "cannot be seen since 14:02" }, "m", { snapshot: snapshot(), history: [{ at: 999, in: 5, out: 1 }] });
  expect([row.snapshot, row.replicas, row.room, row.kv, row.tokens, row.worst, row.spark]).toEqual([undefined, undefined, undefined, undefined, undefined, undefined, []]);
});

it("a lost replica is named with its slots, and without any nothing is said to run", () => {
  const lost = { state: "ejected", slots: 8, down_since: 930 };
  expect(standing({ backends: { "gpu-1": { state: "ready", slots: 8 }, "gpu-2": lost } })).toEqual({ level: "at risk", why: "8 of 16 slots: gpu-2 lost 70 s ago" });
  expect(standing({ slo: { attainment: 0.36, asked: 10, total: 10 }, backends: { "gpu-1": { state: "ready", slots: 8 }, "gpu-2": lost } }).why).toMatch(/^8 of 16 slots: gpu-2 lost 70 s ago; 36\.0 % in time/);
  expect(standing({ backends: { "gpu-2": lost } })).toEqual({ level: "failing", why: "no replica serves: 0 of 1 ready, 1 ejected" });
  expect(standing({ backends: {} }).why).toBe("no replica: nothing can run");
});

it("to a member a pool that no replica serves is not idle, and one that sleeps is asleep", () => {
  const own = (...states: string[]) => standing({ scope: "own", slo: {}, running: 0, backends: Object.fromEntries(states.map((state, i) => [`gpu-${i}`, { state }])) });
  expect(own("ejected", "probing")).toEqual({ level: "failing", why: "no replica serves" });
  expect(own("ejected", "asleep")).toEqual({ level: "asleep", why: "its replicas sleep" });
  expect(own("ejected", "ready").level).toBe("idle");
});

it("sleeping replicas are no loss", () => {
  const asleep = { state: "asleep", slots: 8 };
  expect(standing({ backends: {}, wakes_in_s: 20 })).toEqual({ level: "asleep", why: "would serve in 20.0 s" });
  expect(standing({ backends: {} })).toEqual({ level: "failing", why: "no replica: nothing can run" });
  expect(standing({ backends: { "gpu-1": asleep }, wakes_in_s: 20 })).toEqual({ level: "asleep", why: "would serve in 20.0 s" });
  expect(standing({ backends: { "gpu-1": { state: "ready", slots: 8 }, "gpu-2": asleep } }).level).toBe("healthy");
});

it("a missed SLO, refusals and long waits fail by the rules that are set", () => {
  const slow = { premium: { ttft_s: 1, asked: 60, latency: { ttft_ms: { p95: 9600 } } } };
  expect(standing({ slo: { attainment: 0.95, asked: 10, total: 10, by_tier: slow } })).toEqual({ level: "failing", why: "premium TTFT p95 9.60 s, SLO 1.00 s" });
  const refusing = { slo: { attainment: 0.8, asked: 100, total: 80 } };
  expect(standing(refusing, { slo_attainment: 0.5 }).level).toBe("healthy");
  expect(standing(refusing, { slo_attainment: 0.5, refusals: 0.1 }).why).toBe("20.0 % refused");
  expect(standing({ queue: { depth: 3, oldest_s: 40 } }, { queue_age: 30 }).why).toBe("the oldest request waits 40.0 s");
});

const tiers = (premium: number, standard: number) => ({
  attainment: 0.957, asked: 350, total: 350,
  by_tier: { batch: { asked: 267, attainment: 1 }, premium: { asked: 35, attainment: premium }, standard: { asked: 48, attainment: standard } },
});

it("a tier that misses its SLO fails a pool whose requests together do not, and is named with its figure", () => {
  expect(standing({ slo: tiers(0.714, 0.625) })).toEqual({ level: "failing", why: "standard 62.5 % in time of 48 asked, and 1 more tier, should be 90.0 %" });
  expect(standing({ slo: tiers(0.714, 1) }).why).toBe("premium 71.4 % in time of 35 asked, should be 90.0 %");
  expect(standing({ slo: tiers(0.714, 1) }, { slo_attainment: 0.5 }).level).toBe("healthy");
});

it("a healthy pool says which tier has least", () => {
  expect(standing({ slo: tiers(0.914, 1) })).toEqual({ level: "healthy", why: "95.7 % in time of 350 asked; lowest: premium 91.4 % of 35" });
});

it("a tier of few requests fails a pool where too few are in time to be chance, and none in time is never healthy", () => {
  const few = (asked: number, attainment: number) => ({ attainment: 0.98, asked: 350, total: 350, by_tier: { batch: { asked: 341, attainment: 0.99 }, premium: { asked, attainment }, spot: {} } });
  expect(standing({ slo: few(9, 0) })).toEqual({ level: "failing", why: "premium none in time of 9 asked, should be 90.0 %" });
  expect(standing({ slo: few(5, 0.4) })).toEqual({ level: "failing", why: "premium 40.0 % in time of 5 asked, should be 90.0 %" });
  expect(standing({ slo: few(1, 0) })).toEqual({ level: "at risk", why: "premium none in time of 1 asked, should be 90.0 %" });
  expect(standing({ slo: few(5, 0.8) })).toEqual({ level: "healthy", why: "98.0 % in time of 350 asked; lowest: premium 80.0 % of 5" });
  expect(standing({ slo: { ...few(5, 1), attainment: 0.85 } }).why).toBe("85.0 % in time of 350 asked, should be 90.0 %");
});

it("few requests that are late by chance put a pool at risk, and no more", () => {
  expect(standing({ slo: { attainment: 0.5, asked: 2, total: 2 } })).toEqual({ level: "at risk", why: "50.0 % in time of 2 asked, should be 90.0 %" });
  expect(standing({ slo: { attainment: 0, asked: 4, total: 0 } })).toEqual({ level: "failing", why: "none in time of 4 asked, should be 90.0 %" });
  const slow = (asked: number) => ({ attainment: 0.95, asked: 60, total: 60, by_tier: { premium: { ttft_s: 1, asked, attainment: 0.9, latency: { ttft_ms: { p95: 9600 } } } } });
  expect(standing({ slo: slow(10) }).level).toBe("failing");
  expect(standing({ slo: slow(9) })).toEqual({ level: "at risk", why: "premium TTFT p95 9.60 s, SLO 1.00 s" });
});

it("a pool whose requests all failed is not said to serve because none had an SLO", () => {
  expect(standing({ slo: {}, running: 0, rates: { failed: 0.1, completed: 0 } })).toEqual({ level: "at risk", why: "requests failed and none was answered, 1 min" });
  expect(standing({ slo: {}, running: 0, rates: { failed: 0.1, completed: 0.1 } }).level).toBe("healthy");
});

it("where a member sees no tiers, the entitlements are judged", () => {
  const own = snapshot({ scope: "own", backends: {}, slo: { attainment: 0.95, asked: 350, total: 350 }, entitlements: { "acme-premium": { asked: 35, attainment: 0.7 }, "acme-batch": { asked: 315, attainment: 1 } } });
  expect(standingOf(own, undefined, {})).toEqual({ level: "failing", why: "acme-premium 70.0 % in time of 35 asked, should be 90.0 %" });
});

it("members see no replicas, and their pool is not called broken for it", () => {
  const own = snapshot({ scope: "own", backends: {} });
  expect(replicasOf(own)).toBeUndefined();
  expect(standingOf(own, undefined, {}).level).toBe("healthy");
});

it("replicas are counted by what they do", () => {
  const backends = { a: { state: "ready" }, b: { state: "ejected" }, c: { state: "asleep" }, d: { state: "draining" }, e: { state: "ready", unseen_since: 5 } };
  expect(replicasText(replicasOf(snapshot({ backends }))!)).toBe("1 of 5 ready, 1 ejected, 1 asleep, 1 drained, 1 not seen");
});

it("pools are found by name, model, state and reason, and counted from the worst", () => {
  const rows = [fleetRow({ pool: "llama", ...standing() }, "meta/Llama-3", { snapshot: snapshot(), history: [] }), fleetRow({ pool: "qwen", ...standingOf(undefined, undefined, {}) }, "qwen", undefined)];
  expect([fits(rows[0]!, "LLAMA healthy"), fits(rows[0]!, "unknown"), fits(rows[1]!, "unknown"), fits(rows[0]!, "")]).toEqual([true, false, true, true]);
  expect(tally(rows)).toEqual([["unknown", 1], ["healthy", 1]]);
});

it("an SLO whose time between tokens no replica keeps says in which pool, and why", () => {
  const missed = snapshot({ pool: "llama", slo: { by_tier: { premium: { asked: 9, tbt_s: 0.05, tbt_why: "gpu-1: a token takes 80 ms" }, standard: { asked: 9 } } } });
  expect(tbtWhys([missed, snapshot({ pool: "qwen" })], ["premium", "standard"])).toEqual(["missed in llama: gpu-1: a token takes 80 ms"]);
  expect(tbtWhys([missed], ["standard"])).toEqual([]);
});
