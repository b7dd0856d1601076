import { expect, it } from "vitest";
import { asked, between, levelLabel, rowsOf, timeOf, weight, type Heat } from "./heat";

const heat: Heat = { measure: "ttft", from: 1000, to: 1600, bins: 60, levels_s: [0.1, 1, 10], cells: [[0, 1, 4], [59, 2, 1]] };

it("shows the rows that hold something, and one more to either side", () => {
  expect(rowsOf(heat)).toEqual({ low: 0, high: 3 });
  expect(rowsOf({ ...heat, cells: [[3, 3, 1]] })).toEqual({ low: 2, high: 3 });
  expect([0, 1, 3].map((level) => levelLabel(heat, level))).toEqual(["under 100 ms", "100 ms to 1.00 s", "over 10.0 s"]);
});

it("a part that was brushed asks for its time and its durations", () => {
  const part = between({ column: 12, level: 2 }, { column: 6, level: 1 });
  expect(part).toEqual({ left: 6, right: 12, low: 1, high: 2 });
  expect(asked(heat, part)).toEqual({ from: "1970-01-01T00:17:40.000Z", to: "1970-01-01T00:18:50.000Z", ttft_over: "0.1", ttft_under: "10" });
  expect(timeOf(heat, 60)).toBe(1600);
});

it("a part with all durations asks for its time only", () => {
  const { low, high } = rowsOf(heat);
  expect(asked(heat, between({ column: 0, level: low }, { column: 59, level: high }))).toMatchObject({ ttft_over: "", ttft_under: "" });
});

it("one request is seen beside a thousand", () => {
  expect(weight(1, 1000)).toBeCloseTo(0.15);
  expect(weight(1000, 1000)).toBe(1);
  expect(weight(1, 1)).toBe(1);
});
