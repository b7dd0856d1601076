import { expect, it } from "vitest";
import { check, start } from "../../components/form/form";
import { bound, kindLabel, lastedS, ruleSpecs, sentence } from "./rules";

const rule = { kind: "slo_attainment", threshold: 0.9, clear_threshold: 0.95, for_s: 120, pool: "llama", tenant: "" };

it("a rule reads as a sentence with its units", () => {
  expect(sentence(rule)).toBe("Less than 90.0 % of the requests of pool llama, or of those of one tier, meet their SLO for 2 min; clears at 95.0 %");
  expect(sentence({ ...rule, tenant: "acme", clear_threshold: null, for_s: 0 })).toBe("Less than 90.0 % of acme's requests in pool llama, or of those of one entitlement, meet their SLO");
  expect(sentence({ ...rule, kind: "queue_age", threshold: 60, clear_threshold: 30, pool: "" })).toBe("The oldest request in the queue of each pool waits longer than 60 s for 2 min; clears at 30 s");
  expect(sentence({ ...rule, kind: "backend_health", threshold: null, clear_threshold: null, for_s: 60 })).toBe("A backend of pool llama receives no work and is not draining for 60 s");
  expect(sentence({ ...rule, kind: "quota", threshold: 0.8, clear_threshold: null, for_s: 0, pool: "", tenant: "acme" })).toBe("acme has used more than 80.0 % of a quota");
  expect(sentence({ ...rule, kind: "gpu", threshold: 0.95, clear_threshold: null })).toBe("The GPUs of a backend of pool llama are more than 95.0 % busy for 2 min");
});

it("values have the unit of what they are of", () => {
  expect([bound("quota", 0.9), bound("queue_age", 4.1), bound("debt", 0.5)]).toEqual(["90.0 %", "4.1 s", "0.5"]);
  expect([kindLabel("debt"), kindLabel("scaling_failed")]).toEqual(["Debt", "scaling failed"]);
});

it("a new rule wants a name, and says what it means while it is typed", () => {
  const specs = ruleSpecs(["llama"], ["acme"]);
  const values = start(specs);
  expect(Object.keys(check(specs, values))).toEqual(["name", "threshold"]);
  const threshold = specs.find((spec) => spec.name === "threshold")!;
  expect(threshold.explain!("0.9", { ...values, threshold: "0.9" })).toContain("90.0 % of the requests of each pool");
  expect(threshold.explain!("", values)).toBe("");
});

it("an open alert lasts until now", () => {
  expect(lastedS("2026-01-01T00:00:00Z", null, Date.parse("2026-01-01T00:01:00Z"))).toBe(60);
  expect(lastedS("2026-01-01T00:00:00Z", "2026-01-01T00:00:30Z", 0)).toBe(30);
});
