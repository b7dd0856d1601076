import { expect, it } from "vitest";
import { backendState, outOfService } from "./backend";

it("a replica out of service drains while something runs on it, and has drained when nothing does", () => {
  expect(backendState({ draining: true, silent_since: null }, "ready")).toBe("draining"); // the leader has not looked yet
  expect(backendState({ draining: true, silent_since: null }, "draining")).toBe("draining");
  expect(backendState({ draining: true, silent_since: null }, "drained")).toBe("drained");
  expect(backendState({ draining: false, silent_since: null }, "drained")).toBe("drained");
  expect(backendState({ draining: false, silent_since: "2026-11-21T08:00:00Z" }, undefined)).toBe("silent");
  expect(["draining", "drained", "ready", undefined].map(outOfService)).toEqual([true, true, false, false]);
});
