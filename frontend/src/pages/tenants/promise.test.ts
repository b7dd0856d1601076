import { describe, expect, it } from "vitest";
import { promise } from "./promise";

const pool = { slots: 32, kv_tokens: 800_000, promised: { slots: 24, kv_tokens: 0, tokens_per_s: 0 }, provisionable: null };

describe("what a pool promised", () => {
  it("stands beside what the pool has while nobody plans", () => {
    expect(promise(pool, "slots")).toEqual({ given: 24, now: 32, most: undefined });
  });

  it("stands beside what the planner may provision where it plans", () => {
    const planned = { ...pool, promised: { ...pool.promised, slots: 60 }, provisionable: { slots: 64, kv_tokens: 1_600_000 } };
    expect(promise(planned, "slots")).toEqual({ given: 60, now: 32, most: 64 });
    expect(promise(planned, "tokens_per_s").most).toBeUndefined();
  });

  it("is not shown to members, and unknown is not zero", () => {
    expect(promise({ ...pool, promised: null }, "slots").given).toBe(0);
    expect(promise({ ...pool, provisionable: { slots: 0, kv_tokens: 0 } }, "slots").most).toBeUndefined();
  });
});
