import { expect, it } from "vitest";
import { check, start } from "../../components/form/form";
import { blindFor, blindSince } from "./Alerts";
import { harm, whereOf } from "./Incident";
import { told } from "./Rehearsal";
import { channelSpecs, ruleSpecs, stateLabel } from "./rules";

it("an effect is one sentence, and none is said to be none", () => {
  const none = { requests: 0, refused: 0, failed: 0, late: 0, waited: 0 };
  expect(harm(none)).toBe("No request that it concerns was received meanwhile.");
  expect(harm(none, false)).toBe("How many requests it concerns is unknown.");
  expect(harm({ ...none, requests: 412, refused: 31, failed: 4, late: 60 })).toBe("Of 412 requests 31 were refused, 4 failed and 60 were late.");
  expect(harm({ ...none, requests: 9 })).toBe("Of 9 requests none was refused, failed or late.");
  expect(harm({ ...none, requests: 1, late: 1 })).toBe("One request was received: 1 was late.");
});

it("each action leads somewhere, with the moment where it is about requests", () => {
  const span = { pool: "llama", from: "2026-11-23T08:00:00Z", to: "2026-11-23T08:10:00Z" };
  expect(whereOf({ do: "failed", of: "llama" }, span)!.to).toBe("/requests?pool=llama&from=2026-11-23T08%3A00%3A00Z&to=2026-11-23T08%3A10%3A00Z&outcome=failed");
  expect(whereOf({ do: "backend", of: "engine-1" }, span)!.to).toBe("/backends/engine-1?from=2026-11-23T08%3A00%3A00Z&to=2026-11-23T08%3A10%3A00Z");
  expect(whereOf({ do: "quotas", of: "acme" }, span)!.to).toBe("/tenants/acme/quotas");
  expect(whereOf({ do: "budgets", of: "acme" }, span)!.to).toBe("/tenants/acme/budgets");
  expect(whereOf({ do: "workers", of: "llama" }, span)).toBeUndefined();
});

it("how often a rule would have fired names what is not known", () => {
  expect(told({ fired: 3, known: 1, days: 7 })).toBe("It would have fired 3 times in the last 7 days.");
  expect(told({ fired: 0, known: 0.42, days: 7 })).toBe("It would not have fired in the last 7 days. 42 % of that time is known; the rest is unknown.");
  expect(told({ fired: null, known: 0, days: 7 })).toMatch(/unknown: what it looks at is not stored/);
});

it("a threshold is asked for where the kind has one, and not shown where it has none", () => {
  const specs = ruleSpecs([], [], ["ops"]);
  const values = { ...start(specs), name: "x" };
  expect(check(specs, { ...values, kind: "queue_age" })).toEqual({ threshold: "This field is required." });
  expect(check(specs, { ...values, kind: "no_leader" })).toEqual({});
});

it("a channel's target is worded for its kind, and kept where it is stored", () => {
  expect(channelSpecs("pagerduty", false).find(({ name }) => name === "target")).toMatchObject({ label: "Integration key", required: true });
  expect(channelSpecs("email", true).find(({ name }) => name === "target")).toMatchObject({ label: "Addresses", required: false });
});

it("an alert without a rule is called one-time, whatever the API's word for it is", () => {
  expect(["told", "open", "resolved"].map(stateLabel)).toEqual(["one-time", "open", "resolved"]);
});

it("the rule about leaders is looked at without a leader, and not without the database", () => {
  const rules = [{ source: "rules" as const, pool: "a" }];
  expect([blindFor({ kind: "no_leader", pool: "" }, rules), blindFor({ kind: "ttft", pool: "" }, rules), blindFor({ kind: "ttft", pool: "b" }, rules)].map(({ length }) => length)).toEqual([0, 1, 0]);
  expect(blindFor({ kind: "no_leader", pool: "" }, [...rules, { source: "rules" }])).toHaveLength(1);
});

it("rules that are not evaluated name a moment once", () => {
  const at = (pool: string, since: number) => ({ source: "rules" as const, pool, since });
  expect(blindSince([at("a", 1790000000), at("b", 1790000000)])).toMatch(/^since [^,]+, \d\d:\d\d:\d\d \S+$/);
  expect(blindSince([at("a", 1790000000), at("b", 1790000060)])).toMatch(/^a since .+, b since /);
});
