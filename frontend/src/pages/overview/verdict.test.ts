import { expect, it } from "vitest";
import type { Point, Snapshot } from "../../feed/types";
import { asleep, attained, change, fallsShort, filled, isLow, late, limitsOf, missing, slotsOf, targetsOf, waitingIn } from "./verdict";

const shot = (changes: Partial<Snapshot>): Snapshot => ({ pool: "llama", seq: 1, at: 1000, ...changes });

it("counts slots as configured, and names the replica that is missing", () => {
  const room = slotsOf(shot({ slots: 16, backends: { "engine-0": { state: "ready", slots: 8 }, "engine-1": { state: "ejected", slots: 8, down_since: 930 }, "engine-2": { state: "ready", slots: 8 } } }));
  expect([room.usable, room.all, room.missing]).toEqual([16, 24, 8]);
  expect(missing(room, 1000)).toBe("16 of 24 slots: engine-1 lost 70 s ago");
});

it("calls no replica missing that sleeps on purpose, and says how long the next request waits", () => {
  const room = slotsOf(shot({ wakes_in_s: 30, backends: { "engine-0": { state: "asleep", slots: 8 }, "engine-1": { state: "waking", slots: 8 } } }));
  expect(room).toMatchObject({ missing: 0, all: 0, wakes: 30 });
  expect(slotsOf(shot({ backends: { "engine-0": { state: "probing", slots: 8 } } }))).toMatchObject({ missing: 8, wakes: undefined });
  expect(asleep(30, 0)).toBe("asleep: the next request waits about 30 s");
  expect(asleep(12, 3)).toBe("waking: serves in about 12 s");
});

it("does not call a replica lost that serves although its figures cannot be read", () => {
  const mute = { state: "ready" as const, slots: 8, unseen_since: 930 };
  expect(slotsOf(shot({ backends: { a: mute } })).missing).toBe(8);
  expect(slotsOf(shot({ backends: { a: { ...mute, generates: true } } }))).toMatchObject({ usable: 8, missing: 0, lost: [] });
});

it("says how many of the free slots are kept for baselines while others wait", () => {
  const half = { slots: 16, running: 9, headroom: 8, backends: { a: { state: "ready" as const, slots: 16 } } };
  const said = (changes: Partial<Snapshot>) => filled(shot({ ...half, ...changes }), slotsOf(shot({ ...half, ...changes })));
  expect(said({ queue: { depth: 300 } })).toBe("56.3 % of the slots, 7 kept for baselines");
  expect(said({ queue: { depth: 0 } })).toBe("56.3 % of the slots");
  expect(said({ queue: { depth: 300 }, headroom: 0 })).toBe("56.3 % of the slots");
  expect(said({ queue: { depth: 300 }, running: 16 })).toBe("100 % of the slots");
});

it("says that requests wait for prefill beside free slots", () => {
  const half = { slots: 16, running: 9, headroom: 8, prefill_bound: true, backends: { a: { state: "ready" as const, slots: 16 } } };
  const said = (changes: Partial<Snapshot>) => filled(shot({ ...half, ...changes }), slotsOf(shot({ ...half, ...changes })));
  expect(said({ queue: { depth: 300 } })).toBe("56.3 % of the slots, prefill-bound");
  expect(said({ queue: { depth: 300 }, running: 16 })).toBe("100 % of the slots");
  expect(said({ queue: { depth: 0 } })).toBe("56.3 % of the slots");
});

it("leaves members the sum of their own limits, and tells them where no replica serves", () => {
  const own = (...states: string[]) => slotsOf(shot({ scope: "own", slots: 12, backends: Object.fromEntries(states.map((state, n) => [`a${n}`, { state }])) }));
  expect(own("ready", "ejected")).toMatchObject({ all: 12, usable: 12, missing: 0 });
  expect(own("ejected", "asleep")).toMatchObject({ usable: 12, missing: 0 });
  expect(own("unknown")).toMatchObject({ usable: 12, missing: 0 });
  expect(missing(own("ejected", "probing"), 1000)).toBe("0 of 12 slots: no replica serves");
});

it("says what was refused beside what was served", () => {
  expect(attained({ attainment: 0.8, attainment_served: 1, asked: 100, total: 80, violations: 0 })).toBe("100 % of those served; 0 missed, 20 refused of 100");
  expect(attained({ violations: 0, total: 0, asked: 0 })).toBe("no request with an SLO, 1 min");
});

it("says how many of those asked are retries of clients that were refused, and what holds without them", () => {
  const shot = { attainment: 0.6, attainment_served: 0.9, asked: 306, total: 204, violations: 20, retries: 116, retries_kept: 60 };
  expect(attained({ ...shot, attainment_first: 0.65 })).toBe("90.0 % of those served; 20 missed, 102 refused of 306; 116 are retries, 65.0 % in time at the first attempt");
  expect(attained(shot)).toContain("116 are retries, – in time");
});

it("says of how many an attainment is where clients left before anything was due", () => {
  const two = { attainment: 1, attainment_served: 1, asked: 2, total: 2, violations: 0 };
  expect(attained({ ...two, left: 8 })).toBe("2 judged of 10, 8 left");
  expect(attained({ ...two, left: 1 })).toBe("100 % of those served; 0 missed, 0 refused of 2; 1 left");
  expect(attained({ violations: 0, total: 0, asked: 0, left: 8 })).toBe("0 judged of 8, 8 left");
});

it("measures by the target that is missed most, or else the strictest", () => {
  const tiers = { premium: { ttft_s: 1, latency: { ttft_ms: { p95: 900 } } }, standard: { ttft_s: 5, latency: { ttft_ms: { p95: 9000 } } } };
  expect(targetsOf(shot({ slo: { by_tier: tiers } })).ttft).toEqual({ of: "TTFT", tier: "standard", s: 5, ms: 9000, asked: 0 });
  expect(late(targetsOf(shot({ slo: { by_tier: { premium: tiers.premium } } })).ttft)).toBeUndefined();
});

it("compares with five minutes ago, and says nothing of a time that was not seen", () => {
  const past: Point[] = [{ at: 700, depth: 2 }, { at: 705, depth: 4 }, { at: 1000, depth: 10 }];
  expect(change(past, 1000, (p) => p.depth, String)).toBe("+7 in 5 min");
  expect(change(past.slice(2), 1000, (p) => p.depth, String)).toBeUndefined();
});

it("takes the strictest threshold of the rules that apply to the whole pool", () => {
  const rule = { kind: "slo_attainment", threshold: 0.9, pool: "", tenant: "", enabled: true };
  const rules = [rule, { ...rule, threshold: 0.5 }, { ...rule, threshold: 0.99, enabled: false }, { ...rule, threshold: 0.95, pool: "qwen" }, { ...rule, kind: "queue_age", threshold: 60 }];
  expect(limitsOf(rules, "llama")).toEqual({ slo_attainment: 0.9, queue_age: 60 });
});

it("says that requests wait where those of the tenants without a row do", () => {
  const tenants = { acme: { waiting: 0, running: 9 }, globex: { waiting: 2 } };
  expect(waitingIn(shot({ tenants, queue: { depth: 7 }, left_out: { tenants: 1800 } }))).toEqual({ byTenant: { acme: 0, globex: 2 }, others: 5 });
  expect(waitingIn(shot({ tenants, queue: { depth: 7 } })).others).toBe(0);
});

it("an attainment is marked below nine in ten, and one that is not known never is", () => {
  expect([0, 0.899, 0.9, 1, undefined].map(isLow)).toEqual([true, true, false, false, false]);
});

it("of few requests so many have to be missed that it is no chance, as alert rules have it", () => {
  const most = (asked: number, low: number) => Array.from({ length: asked + 1 }, (_, kept) => kept).findLast((kept) => fallsShort(kept / asked, asked, low)) ?? -1;
  // tests/unit/core/ledger/test_slo.py has the same
  expect([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].map((asked) => most(asked, 0.9))).toEqual([-1, 0, 1, 1, 2, 3, 4, 5, 5, 8, 9]);
  expect([fallsShort(0, 0, 0.9), fallsShort(0, 1, 0.99), fallsShort(0, 1, 1), fallsShort(1, 1, 1)]).toEqual([false, true, true, false]);
});
