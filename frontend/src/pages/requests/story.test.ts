import { money } from "../../lib/format";
import { expect, it } from "vitest";
import { factorsOf, numbersOf, product, termsOf } from "./story";

it("a check tells its numbers, or a note where there are none", () => {
  expect(numbersOf({ rule: "concurrency", state: "passed", value: 3, limit: 8, unit: "in flight before it" })).toBe("3 of 8 in flight before it");
  expect(numbersOf({ rule: "token_budget", state: "failed", value: 376, limit: 100, depth: 10_000, unit: "tokens in its bucket" })).toBe("376 of 100 tokens in its bucket; depth 10.0k");
  expect(numbersOf({ rule: "slot", state: "passed", value: 7, unit: "place in the queue" })).toBe("place 7 in the queue");
  expect(numbersOf({ rule: "slot", state: "passed", note: "a slot was free" })).toBe("a slot was free");
  expect(numbersOf({ rule: "weight", state: "not_reached" })).toBe("");
});

it("the weight is the product of its factors", () => {
  const factors = factorsOf({ weight: 80, debt: 0.25, burst: 0.5, at: 1, class: "elastic", factors: { service_class: 100, slo: 0.5, burst: 0.8, debt: 2 } });
  expect(factors.map(([name]) => name)).toEqual(["class elastic", "SLO", "burst", "debt"]);
  expect(product(factors)).toBeCloseTo(80);
});

it("money is as exact as it is small", () => {
  expect([money(0.00125, "EUR"), money(0, "USD"), money(1.5, "EUR")]).toEqual(["0.0013 EUR", "0.00 USD", "1.50 EUR"]);
});

it("a grant's reason falls into its terms", () => {
  expect(termsOf("spot band, due 632.65 s after arrival: deadline 600.00 + work 32.65; waited 0.17 s")).toEqual(["spot band", "due 632.65 s after arrival", "deadline 600.00 + work 32.65", "waited 0.17 s"]);
  expect(termsOf("")).toEqual([]);
});
