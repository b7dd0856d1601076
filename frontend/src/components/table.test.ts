import { expect, it } from "vitest";
import { steps } from "./Table";

it("a long table shows more rows with each press, until it shows all", () => {
  expect(steps(4312, 500)).toEqual({ most: 500, next: 1000 });
  expect(steps(4312, 4000)).toEqual({ most: 4000, next: 4312 });
  expect(steps(200, 12)).toEqual({ most: 12, next: 200 });
  expect(steps(2000, 12)).toEqual({ most: 12, next: 500 });
  expect(steps(7, 500)).toEqual({ most: 7, next: 7 });
});
