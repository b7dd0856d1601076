import { expect, test } from "vitest";
import { isOpen, lines, progress, toneOf } from "./batch";

test("a batch whose lines were not counted has no progress, rather than none of it", () => {
  const row = { total: 0, completed: 0, failed: 0 };
  expect(progress(row)).toBeUndefined();
  expect(lines(row)).toBe("not counted yet");
});

test("failed lines have a result too, and are said", () => {
  const row = { total: 3000, completed: 1196, failed: 4 };
  expect(progress(row)).toBe(0.4);
  expect(lines(row)).toBe("1,200 of 3,000 lines, 4 failed");
});

test("only what is open can be cancelled, and only what is complete is good", () => {
  const all = ["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"] as const;
  expect(all.filter((status) => isOpen({ status }))).toEqual(["validating", "in_progress", "finalizing", "cancelling"]);
  expect(all.filter((status) => toneOf(status) === "good")).toEqual(["completed"]);
});
