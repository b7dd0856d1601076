import { expect, it } from "vitest";
import type { UsageRow } from "../../api/catalog";
import { barsOf, budgetLacks, givenUp, groupsOf, lacking, monthOf, shown, span, toggled, totalOf } from "./usage";

const row = (changes: Partial<UsageRow>): UsageRow => ({ requests: 1, completed: 1, refused: 0, failed: 0, cancelled: 0, input_tokens: 10, output_tokens: 5, cached_tokens: 0, slo_met: 1, slo_total: 1, slo_asked: 1, attainment: 1, attainment_served: 1, slo_retries: 0, attainment_first: 1, tokens_unknown: 0, slot_s: 2, cost: 0.5, currency: "USD", ...changes });

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

it("sums say of how many requests they lack the tokens", () => {
  expect(lacking(totalOf([row({}), row({})]).unknown)).toBeUndefined();
  expect(lacking(totalOf([row({ tokens_unknown: 1 }), row({})]).unknown)).toBe("1 request that was lost with its gateway has an answer of unknown length: only the prompt, as estimated, is in sums and costs.");
  expect(lacking(totalOf([row({ tokens_unknown: 1 }), row({ tokens_unknown: 2 })]).unknown)).toBe("3 requests that were lost with their gateway have answers of unknown length: only the prompt, as estimated, is in sums and costs.");
  expect(lacking(totalOf([row({ tokens_unknown: 1 }), row({ tokens_unknown: null })]).unknown)).toContain("is not known of hours that an older version added up");
});

it("says that clients give up where many do, and not of single ones", () => {
  expect(givenUp(totalOf([row({ requests: 2086, cancelled: 1789 })]))).toContain("1,789 requests of 2,086 were cancelled, as a rule by clients that did not wait");
  expect(givenUp(totalOf([row({ requests: 12, cancelled: 9 })]))).toBeUndefined();
  expect(givenUp(totalOf([row({ requests: 2000, cancelled: 90 })]))).toBeUndefined();
  expect(givenUp(totalOf([row({ requests: 2000, cancelled: 60 }), row({ requests: 0, cancelled: 40 })]))).toBeDefined();
});

it("a budget says of how many requests it lacks the tokens", () => {
  expect(budgetLacks(0)).toBeUndefined();
  expect(budgetLacks(1)).toBe("The answers of 1 request that was lost with its gateway are not in it.");
  expect(budgetLacks(2)).toBe("The answers of 2 requests that were lost with their gateway are not in it.");
  expect(budgetLacks(null)).toContain("is not known");
  expect(budgetLacks(undefined)).toBe(budgetLacks(null)); // a process of the version before does not say
});

it("times are read without what does not matter", () => {
  expect([shown("hour", "2026-11-21T08:00:00+00:00"), shown("day", "2026-11-21T00:00:00+00:00"), shown("key", "")]).toEqual(["2026-11-21 08:00", "2026-11-21", "–"]);
});

it("months and days are of UTC, as bills are", () => {
  const now = Date.parse("2026-01-01T00:30:00+01:00"); // still December there
  expect(span("month", now)).toEqual({ from: "2025-12-01T00:00:00.000Z", to: "2026-01-01T00:00:00.000Z" });
  expect(span("last", now)).toEqual({ from: "2025-11-01T00:00:00.000Z", to: "2025-12-01T00:00:00.000Z" });
  expect([monthOf("month", now), monthOf("last", now), monthOf("24h", now)]).toEqual(["2025-12", "2025-11", undefined]);
  expect(span("dates", now, "2026-10-25", "2026-10-25")).toEqual({ from: "2026-10-25T00:00:00.000Z", to: "2026-10-26T00:00:00.000Z" });
  for (const [first, last] of [["2026-10-26", "2026-10-25"], ["yesterday", null], [null, null]] as const) expect(span("dates", now, first, last)).toEqual(span("24h", now));
});

it("stacks costs by day, the dearest below, and never two currencies", () => {
  const cost = (day: string, model: string, amount: number) => row({ day: `${day}T00:00:00+00:00`, model, cost: amount });
  const rows = [cost("2026-11-02", "a", 1), cost("2026-11-01", "b", 5), cost("2026-11-01", "a", 2), cost("2026-11-02", "c", 0.5)];
  expect(barsOf(rows, "model", 8)).toEqual({
    names: ["b", "a", "c"],
    bars: [
      { day: "2026-11-01", parts: [5, 2, 0] },
      { day: "2026-11-02", parts: [0, 1, 0.5] },
    ],
    most: 7,
    currency: "USD",
  });
  expect(barsOf(rows, "model", 2)!.names).toEqual(["b", "others"]);
  expect(barsOf(rows, "model", 2)!.bars[0]!.parts).toEqual([5, 2]);
  expect(barsOf([...rows, row({ currency: "EUR" })], "model", 8)).toBeUndefined();
  expect(barsOf([row({ cost: 0, currency: "" })], "model", 8)).toBeUndefined();
});
