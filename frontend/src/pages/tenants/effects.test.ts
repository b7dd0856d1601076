import { expect, it } from "vitest";
import type { Effects, PoolEffect, PoolPicture } from "../../api/catalog";
import { bars, findings, ofRequests, said } from "./effects";

const picture = (reserved: number, promised: number, capacity = 32): PoolPicture => ({
  capacity: { slots: capacity, kv_tokens: 100_000 },
  answering: { slots: capacity, kv_tokens: 100_000 },
  reserved: { slots: reserved, kv_tokens: 0, tokens_per_s: 0 },
  promised: { slots: promised, kv_tokens: 0, tokens_per_s: 0 },
  provisionable: null,
});

const effect = (changes: Partial<PoolEffect>): PoolEffect => ({ pool: "llama", before: picture(8, 16), after: picture(20, 28), entitlements: [], ...changes });
const effects = (pool: PoolEffect): Effects => ({ pools: [pool], changes: [] });
const changed = (after: { state: string; reason: string } | null, before: { state: string; reason: string } | null = null, entitlement = "mine") => ({ entitlement, tenant: "acme", tier: "premium", service_class: "guaranteed", before, after });

it("a bar per dimension that is bounded or used, with what is held before and after", () => {
  const [slots, kv, ...more] = bars(effect({}));
  expect(more).toEqual([]);
  expect(said(slots!)).toBe("reserved 8 → 20 of 32");
  expect(slots!.over).toBe(false);
  expect(said(kv!)).toBe("promised 0 of 100k tokens");
  expect(bars(effect({ after: picture(40, 48) }))[0]!.over).toBe(true);
});

it("an elastic share is promised, not reserved", () => {
  expect(said(bars(effect({ before: picture(0, 8), after: picture(0, 12) }))[0]!)).toBe("promised 8 → 12 of 32");
});

it("says that a share fits, or why not", () => {
  expect(findings(effects(effect({ entitlements: [changed({ state: "bound", reason: "" })] })), "mine")).toEqual([{ mood: "good", text: "It fits: its share is reserved at once." }]);
  const reason = "needs 30 slots, the pool has 24 left to reserve: add backends or lower it";
  expect(findings(effects(effect({ entitlements: [changed({ state: "pending", reason })] })), "mine")).toEqual([{ mood: "warn", text: `It does not fit yet and stays pending: ${reason}.` }]);
  expect(findings(effects(effect({})), "mine")).toEqual([{ mood: "good", text: "It fits, and no other entitlement is affected." }]);
});

it("names others who would suffer", () => {
  const other = changed({ state: "degraded", reason: "too little" }, { state: "bound", reason: "" }, "theirs");
  const [found] = findings(effects(effect({ entitlements: [other] })), "mine");
  expect(found).toEqual({ mood: "warn", text: "theirs (acme) becomes degraded: too little." });
});

it("counts the keys that go with it", () => {
  const gone = { action: "delete", kind: "apikey", object: "qm-1", before: {}, after: null };
  expect(findings({ pools: [], changes: [gone, gone] })).toEqual([{ mood: "warn", text: "2 keys are deleted with it: new requests are refused, and those that wait or run end with an error." }]);
  expect(findings({ pools: [], changes: [gone] })[0]!.text).toContain("One key is deleted with it: ");
});

it("says what becomes of requests that wait or run already", () => {
  const of = (kind: string, action: string, before: Record<string, unknown>, after: Record<string, unknown> | null) => ofRequests({ pools: [], changes: [{ kind, action, object: "one", before, after }] });
  expect(of("entitlement", "change", { tier: "premium" }, { tier: "batch" })).toEqual(["Requests that wait or run already keep what they were admitted with."]);
  expect(of("entitlement", "change", { description: "" }, { description: "theirs" })).toEqual([]);
  expect(of("backend", "delete", {}, null)).toEqual(["Requests that run there are answered; it receives no new ones."]);
  expect(of("backend", "change", { slots: 8 }, { slots: 2 })).toEqual(["Requests that run there are answered, also those beyond the new slots."]);
  expect(of("backend", "change", { slots: 2 }, { slots: 8 })).toEqual([]);
});
