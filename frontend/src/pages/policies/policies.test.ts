import { expect, it } from "vitest";
import type { Version } from "../../api/operate";
import { draftOf, evidenceOf, replayIn, roomTyped, thresholds, windowOf, withoutValue, withValue } from "./drafts";
import { picture } from "./histogram";
import { changesOf, difference, inForce, limits, previous, shown, triedChanges, typed, uncompared, within, type Parameter } from "./params";

const version = (number: number, more: Partial<Version> = {}): Version => ({
  number,
  parent: number > 1 ? number - 1 : null,
  restores: null,
  at: "2026-01-01T00:00:00Z",
  author_kind: "person",
  author: "olga",
  reason: "",
  policy: "ewsjf",
  policy_params: {},
  modifiers: {},
  routing: "least_work",
  routing_params: {},
  room: null,
  partition: "",
  changes: {},
  serving: false,
  ...more,
});

const parameter = (more: Partial<Parameter>): Parameter => ({
  name: "a",
  type: "float",
  default: 1,
  meaning: "What it does.",
  unit: null,
  allowed: "any number",
  minimum: null,
  maximum: null,
  exclusive_minimum: false,
  exclusive_maximum: false,
  choices: null,
  ...more,
});

it("parameters keep their type, and empty ones take the default", () => {
  const known = [parameter({}), parameter({ name: "n", type: "int", default: 2 }), parameter({ name: "partition", type: "str", default: "" })];
  expect(typed(known, { a: " 0.5", n: "", partition: "1-9" })).toEqual({ values: { a: 0.5, partition: "1-9" }, errors: {} });
  expect(typed(known, { a: "much", n: "1.5" }).errors).toEqual({ a: "Use a number.", n: "Use a whole number." });
});

it("a parameter outside its range is refused with what is allowed", () => {
  const above = parameter({ name: "above", allowed: "above 0", minimum: 0, exclusive_minimum: true });
  const share = parameter({ name: "share", allowed: "at least 0 and below 1", minimum: 0, maximum: 1, exclusive_maximum: true });
  const grade = parameter({ name: "grade", type: "int", allowed: "0 or 1", choices: [0, 1] });
  const word = parameter({ name: "word", type: "str", allowed: "soft or hard", choices: ["soft", "hard"] });
  const known = [above, share, grade, word];
  expect(typed(known, { above: "0", share: "1", grade: "2", word: "firm" }).errors).toEqual({ above: "Must be above 0.", share: "Must be at least 0 and below 1.", grade: "Must be 0 or 1.", word: "Must be soft or hard." });
  expect(typed(known, { above: "1e-9", share: "0", grade: "1", word: "hard" })).toEqual({ values: { above: 1e-9, share: 0, grade: 1, word: "hard" }, errors: {} });
  expect([limits(above), limits(grade)]).toEqual(["Above\u00a00.", ""]);
});

it("a diff names what is set, changed and taken away", () => {
  const from = version(1, { policy_params: { a: 1, b: 2 }, modifiers: { priority: {} } });
  const to = version(2, { policy: "unified", policy_params: { a: 1, b: 3 }, modifiers: { fair: { weight: 2 } } });
  expect(difference(from, to)).toEqual([
    { name: "policy", before: "ewsjf", after: "unified" },
    { name: "b", before: 2, after: 3 },
    { name: "modifier priority", before: "on", after: undefined },
    { name: "modifier fair", before: undefined, after: { weight: 2 } },
  ]);
  expect(difference(from, from)).toEqual([]);
  expect(changesOf({ changes: { "policy_params.a": [1, null] } })).toEqual([{ name: "a", before: 1, after: null }]);
  expect([undefined, null, 0.123456, 3, "", { a: 1 }].map(shown)).toEqual(["default", "default", "0.1235", "3", "empty", '{"a":1}']);
});

it("a diff names the room only where both versions keep it", () => {
  const from = version(1, { room: { prefill_credit: null, headroom_slots: 4 } });
  const to = version(2, { room: { prefill_credit: 2048, headroom_slots: 4 } });
  expect(difference(from, to)).toEqual([{ name: "prefill credit", before: "automatic", after: 2048 }]);
  expect(difference({ ...from, room: null }, to)).toEqual([]);
  expect(changesOf({ changes: { "room.headroom_slots": [null, 4] } })).toEqual([{ name: "headroom", before: null, after: 4 }]);
});

it("one click goes back to the version before, if that was another", () => {
  const first = version(1, { policy: "fifo" });
  expect(previous([version(2, { serving: true }), first])?.number).toBe(1);
  expect(previous([version(2, { policy: "fifo", serving: true }), first])).toBeUndefined();
  expect(previous([version(1, { serving: true })])).toBeUndefined();
  expect(inForce([first])).toBeUndefined();
});

it("queues stand over the lengths they hold", () => {
  const found = picture({ edges: [64, 128, 256, 512], recent: [10, 0, 5], sample: [1, 2, 0], queues: [[1, 127], [256, 4096]] });
  expect(found.bars.map((bar) => bar.left)).toEqual([0, 1 / 3, 2 / 3]);
  expect(found.queues.map(({ left, right, share }) => [left, right, share])).toEqual([[0, 1 / 3, 10 / 15], [2 / 3, 1, 5 / 15]]);
  expect(found.ticks.map((tick) => tick.label)).toEqual(["64", "128", "256", "512"]);
  expect(picture({ edges: [], recent: [], sample: [], queues: [] }).bars).toEqual([]);
});

it("the heights of both series are shares of their requests on one axis", () => {
  const found = picture({ edges: [64, 128, 256, 512], recent: [10, 0, 5], sample: [100, 200, 0], queues: [] });
  expect(found.levels.map(({ share }) => Math.round(share * 100))).toEqual([0, 20, 40, 60, 80]);
  expect(found.levels.map(({ at }) => at)).toEqual([0, 0.25, 0.5, 0.75, 1]);
  const shares = found.bars.map(({ recent, sample }) => [recent * 0.8, sample * 0.8]);
  expect(shares.flat()).toEqual([10 / 15, 1 / 3, 0, 2 / 3, 5 / 15, 0].map((share) => expect.closeTo(share)));
  const unknown = picture({ edges: [64, 128], recent: [3], sample: [0], queues: [] });
  expect([unknown.bars[0]?.recent, unknown.bars[0]?.sample]).toEqual([1, 0]); // nothing sampled yet is no division by zero
});

it("a draft's window is whole hours back, two moments, or the latest traffic", () => {
  const now = Date.parse("2026-11-23T12:00:00Z");
  expect(windowOf("", "", "", now)).toBeUndefined();
  expect(windowOf("6", "", "", now)).toEqual({ since: "2026-11-23T06:00:00.000Z", until: "2026-11-23T12:00:00.000Z" });
  expect(windowOf("chosen", "2026-11-22T14:00:00Z", "2026-11-22T16:00:00Z", now)).toEqual({ since: "2026-11-22T14:00:00.000Z", until: "2026-11-22T16:00:00.000Z" });
  expect(windowOf("chosen", "2026-11-22T14:00", "", now)).toBeUndefined();
});

it("a policy of a lab run is a draft with its modifiers and parameters", () => {
  expect(draftOf("aging+edf:slack_s=2,mode=a=b")).toEqual({ policy: "edf", params: { slack_s: "2", mode: "a=b" }, modifiers: ["aging"] });
  expect(draftOf("fifo")).toEqual({ policy: "fifo", params: {}, modifiers: [] });
  expect([draftOf(null), draftOf("")]).toEqual([undefined, undefined]);
});

it("an empty room is automatic, and half a slot is none", () => {
  expect([roomTyped(" "), roomTyped("0"), roomTyped("512"), roomTyped("1.5"), roomTyped("-1")]).toEqual([null, 0, 512, undefined, undefined]);
});

it("values to try replace each other by field, and leave with their object", () => {
  const once = withValue([], "entitlement", "acme-gold", "concurrency", 4, 9);
  const twice = withValue(withValue(once, "entitlement", "acme-gold", "concurrency", 4, 6), "tier", "gold", "weight", 30, 50);
  expect(triedChanges(twice)).toEqual([
    { name: "entitlement acme-gold concurrency", before: 4, after: 6 },
    { name: "tier gold weight", before: 30, after: 50 },
  ]);
  expect(withoutValue(twice, "tier", "gold", "weight").map(({ name }) => name)).toEqual(["acme-gold"]);
});

it("a simulated figure stands with the simulator's error, and without one that is not known", () => {
  expect(within(2, 0.25)).toEqual([1.6, 2.5]);
  expect(within(2, undefined)).toBeUndefined();
});

it("what stops a trial is told with its numbers, and a number that is missing is not made up", () => {
  expect(thresholds({ drop: 0.05, alarm: 0.05, wait_factor: 1.5, starvation_s: 5, starvation: 1.5, least_canary: 30 })[1]).toBe("p95 wait of a tier grows above 1.5 times what it was and above 5.00 s");
  expect(thresholds({})[3]).toMatch(/fewer than unknown requests/);
});

it("evidence below zero is none", () => {
  expect([evidenceOf(-8.47), evidenceOf(0), evidenceOf(1.234)]).toEqual(["none", "none", "1.23"]);
});

it("a proposed trial says how many requests its replay needs and how many there are", () => {
  const since = "2026-11-27T09:00:00Z";
  expect(replayIn({ since, requests: 120, needed: 300 })).toMatch(/^Its replay needs 300 requests; 120 have ended since 27 Nov, /);
  expect(replayIn({ since, requests: 300, needed: 300 })).toMatch(/^Its replay begins within seconds, on the requests since /);
  expect(replayIn(null)).toBe("Its replay begins within seconds.");
});

it("says why nothing was compared: what cannot be seen is not too few requests", () => {
  expect(uncompared(10, true, "unknown since 23:17:31 UTC")).toBe("Not compared: the pool's requests in flight are unknown since 23:17:31 UTC.");
  expect(uncompared(10, false, undefined)).toBe("Not compared: the engine model is not calibrated yet.");
  expect(uncompared(10, true, undefined)).toBe("Too few requests in the last 10 minutes to compare.");
});
