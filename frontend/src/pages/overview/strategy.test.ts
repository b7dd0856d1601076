import { expect, it } from "vitest";
import type { Trial } from "../../api/operate";
import { canaryLine, lastLine } from "./strategy";

const trial = (more: Partial<Trial>): Trial =>
  ({ id: 3, at: "2026-03-01T12:00:00Z", state: "canary", reason: "", version: 5, requests: 0, gate: {}, guard: {}, canary_at: "2026-03-01T12:00:00Z", canary_until: "2026-03-01T12:05:00Z", ended_at: null, ...more }) as Trial;
const at = (time: string) => Date.parse(`2026-03-01T${time}Z`);

it("a canary says how long it still serves and whether its within its guard rails", () => {
  expect(canaryLine(trial({ guard: { enough: true } }), at("12:03:00"))).toBe("trial 3 as version 5: 2 min left, within its guard rails");
  expect(canaryLine(trial({ guard: { enough: false } }), at("12:04:30"))).toBe("trial 3 as version 5: 30 s left, too few requests to judge");
  expect(canaryLine(trial({ guard: { stop: true, reason: "premium misses more" } }), at("12:06:00"))).toBe("trial 3 as version 5: ending, premium misses more");
});

it("what was tried last says what became of it, and why", () => {
  const ended = trial({ state: "rolled_back", ended_at: "2026-03-01T12:05:00Z", requests: 1200, guard: { reason: "p99 wait of standard doubled" } });
  expect(lastLine(ended, at("12:10:00"))).toBe("trial 3 on 1,200 requests, 5 min ago: p99 wait of standard doubled");
});
