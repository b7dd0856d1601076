import { expect, it } from "vitest";
import type { UsageRow } from "../../api/catalog";
import { groupsOf, shown, span, toggled, totalOf } from "./usage";

const row = (changes: Partial<UsageRow>): UsageRow => ({ requests: 1, completed: 1, refused: 0, failed: 0, cancelled: 0, input_tokens: 10, output_tokens: 5, slo_met: 1, slo_total: 1, slo_asked: 1, attainment: 1, attainment_served: 1, slot_s: 2, cost: 0.5, currency: "USD", ...changes });

it("asks for whole minutes, up to now", () => {
  const now = Date.parse("2026-11-21T08:00:30Z");
  expect(span("24h", now)).toEqual({ from: "2026-11-20T08:01:00.000Z", to: "2026-11-21T08:01:00.000Z" });
  expect(span("nonsense", now)).toEqual(span("24h", now));
});

it("keeps at least one group, and only those that exist", () => {
  expect(groupsOf("key,day,key,nonsense", "tenant")).toEqual(["key", "day"]);
  expect(groupsOf(null, "tenant")).toEqual(["tenant"]);
  expect(toggled(["key"], "key")).toEqual(["key"]);
  expect(toggled(["key"], "day")).toEqual(["key", "day"]);
  expect(toggled(["key", "day"], "key")).toEqual(["day"]);
});

it("adds up, and never adds dollars to euros", () => {
  const total = totalOf([row({}), row({ cost: 0, currency: "" }), row({ refused: 2, requests: 3 })]);
  expect(total).toMatchObject({ requests: 5, refused: 2, input: 30, output: 15, met: 3, judged: 3, cost: { sum: 1, currency: "USD" } });
  expect(totalOf([row({}), row({ currency: "EUR" })]).cost).toBeUndefined();
  expect(totalOf([row({}), row({ cost: null, currency: "mixed" })]).cost).toBeUndefined();
});

it("times are read without what does not matter", () => {
  expect([shown("hour", "2026-11-21T08:00:00+00:00"), shown("day", "2026-11-21T00:00:00+00:00"), shown("key", "")]).toEqual(["2026-11-21 08:00", "2026-11-21", "–"]);
});
