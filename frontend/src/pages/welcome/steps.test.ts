import { expect, it } from "vitest";
import { nextStep, poolName, steps, type Inventory } from "./steps";

const empty: Inventory = { backends: 0, pools: 0, tenants: 0, entitlements: 0, keys: 0, requests: 0 };

it("leads from the engine to the first request", () => {
  expect(nextStep(steps(empty))?.name).toBe("engine");
  expect(nextStep(steps({ ...empty, pools: 1 }))?.name).toBe("engine");
  const served = { ...empty, pools: 1, backends: 2 };
  expect(nextStep(steps(served))?.name).toBe("tenant");
  expect(nextStep(steps({ ...served, tenants: 1, entitlements: 1 }))?.name).toBe("tenant");
  const keyed = { ...served, tenants: 1, entitlements: 1, keys: 1 };
  expect(nextStep(steps(keyed))?.name).toBe("request");
  expect(nextStep(steps({ ...keyed, requests: 3 }))).toBeUndefined();
  expect(steps(served)[0]!.text).toBe("2 backends in 1 pool.");
});

it("a pool is named after its model", () => {
  expect(["meta-llama/Llama-3.1-8B-Instruct", "qwen3", "???"].map(poolName)).toEqual(["llama-3-1-8b-instruct", "qwen3", ""]);
});
