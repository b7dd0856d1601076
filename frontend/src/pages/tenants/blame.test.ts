import { expect, it } from "vitest";
import type { PoolWaits } from "../../api/neighbours";
import { blame } from "./blame";

const waits = (...held: [string, number][]): PoolWaits => ({
  pool: "llama",
  requests: 3,
  waited_s: 42,
  wait_p50_s: 1,
  wait_p95_s: 2,
  longest_s: 3,
  whole: true,
  held: held.map(([tenant, share]) => ({ tenant, share, slot_s: share * 100, requests: 1, overtook: 0 })),
});

it("names who held most of the slots, and does not blame others for one's own load", () => {
  expect(blame(waits(["initech", 0.45], ["acme", 0.3], ["hooli", 0.25]), "acme")).toMatch(/^Of the other tenants, initech held the most slots: 45.0 %.* 42.0 s/);
  expect(blame(waits(["acme", 0.7], ["initech", 0.3]), "acme")).toContain("mostly for its own requests");
  expect(blame(waits(["acme", 0.4], ["initech", 0.35], ["hooli", 0.25]), "acme")).toMatch(/^Of the other tenants, initech/);
  expect(blame(waits(), "acme")).toContain("nothing ran");
  expect(blame({ ...waits(), waited_s: 0, longest_s: 0 }, "acme")).toBe("Its requests waited less than a millisecond.");
});
