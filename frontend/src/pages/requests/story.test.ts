import { money } from "../../lib/format";
import { expect, it } from "vitest";
import { factorsOf, insteadInWords, numbersOf, product, retryInWords, sooner, termsOf } from "./story";

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

it("a retry is called obeyed or early only where the header's spread leaves no doubt", () => {
  const retry = { told_s: 4, least_s: 3, most_s: 5, early: 0, obeyed: true, next: { request_id: "r", after_s: 6, outcome: "completed", reason: "stop" } };
  expect(retryInWords(retry)).toBe("It was asked to wait 3.00 s to 5.00 s. The next request of its key came after 6.00 s, as asked; it was completed.");
  expect(retryInWords({ ...retry, obeyed: false, early: 4, next: { ...retry.next, after_s: 0.4, outcome: "refused", reason: "queue_full" } })).toContain("after 400 ms, too early as 4 requests of the key did; it was refused too (queue full)");
  expect(retryInWords({ ...retry, obeyed: null })).toContain("is unknown");
  expect(retryInWords({ ...retry, told_s: null, least_s: null, most_s: null, obeyed: null, next: null })).toBe("Which wait was sent with the refusal is unknown: it was not recorded, or none was sent. No later request of its key has ended since.");
});

it("another tier is compared with its own wait, and not praised where it is no faster", () => {
  const instead = { seconds: 60, unknown: [], tiers: [{ tier: "premium", requests: 9, waited_s: 0.4, ttft_s: 0.6 }] };
  expect(insteadInWords(instead, 8000)).toBe("With tier premium: a wait of about 400 ms instead of 8.00 s.");
  expect(insteadInWords(instead, 410)).toMatch(/^No shorter wait/);
  expect(insteadInWords(instead, 3)).toMatch(/^It did not wait/);
  expect(insteadInWords(instead, null)).toBe("Requests of tier premium waited about 400 ms for a slot.");
  expect(insteadInWords({ ...instead, tiers: [] }, 8000)).toMatch(/^Unknown/);
  expect([8000, 410, 3, null].map((ms) => sooner(instead, ms))).toEqual([true, false, false, false]);
  expect(sooner({ ...instead, tiers: [] }, 8000)).toBe(false);
});
