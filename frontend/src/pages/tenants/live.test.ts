import { expect, it } from "vitest";
import type { Snapshot } from "../../feed/types";
import { attainment, entitlementsOf, leftOut, unseen, useByTenant } from "./live";

const shot = (pool: string, changes: Partial<Snapshot>): Snapshot => ({ pool, seq: 1, at: 0, ...changes });

it("adds a tenant up over its pools", () => {
  const pools = [
    shot("a", { tenants: { acme: { running: 2, waiting: 1, tokens_per_s: { input: 10, output: 5 }, refusals: { concurrency: 2, quota: 1 }, slo: { violations: 1, total: 10, asked: 12, left: 3 } } }, entitlements: { "acme-a": { tenant: "acme", concurrency: 8 } } }),
    shot("b", { tenants: { acme: { running: 3 } }, entitlements: { "acme-b": { tenant: "acme", concurrency: 4 }, "globex-b": { tenant: "globex", concurrency: 1 } } }),
  ];
  const use = useByTenant(pools);
  expect(use.get("acme")).toEqual({ running: 5, waiting: 1, limit: 12, tokensPerS: 15, refused: 3, violations: 1, judged: 10, asked: 12, left: 3 });
  expect(attainment(use.get("acme"))).toBe(0.75);
  expect(attainment(use.get("globex"))).toBeUndefined();
  expect([...entitlementsOf(pools).keys()]).toEqual(["acme-a", "acme-b", "globex-b"]);
});

it("takes a tenant's limit from its row where some of its entitlements were left out", () => {
  const part = shot("a", { tenants: { acme: { concurrency: 40 } }, entitlements: { "acme-a": { tenant: "acme", concurrency: 8 } }, left_out: { entitlements: 9 } });
  expect(useByTenant([part]).get("acme")?.limit).toBe(40);
});

it("names the pools of a tenant that are in none of its sums", () => {
  const pools = [shot("a", {})];
  expect(unseen(["c", "a", "b", "c"], pools)).toEqual(["b", "c"]);
  expect(unseen(["a"], pools)).toEqual([]);
});

it("knows nothing of a tenant whose row a large pool left out, although one of its entitlements was sent", () => {
  const large = shot("a", { tenants: { globex: { running: 9 } }, entitlements: { "acme-a": { tenant: "acme", concurrency: 8, running: 5 } }, left_out: { tenants: 1 } });
  const small = shot("b", { tenants: { acme: { running: 3, concurrency: 4 } }, entitlements: {} });
  expect(useByTenant([large]).get("acme")).toBeUndefined();
  expect(useByTenant([large, small]).get("acme")).toMatchObject({ running: 3, limit: 4 });
  expect(leftOut("acme", ["a", "b"], [large, small])).toEqual(["a"]);
  expect(leftOut("globex", ["a"], [large, small])).toEqual([]);
});
