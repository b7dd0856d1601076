import { expect, it } from "vitest";
import { labelled } from "./labels";

const widthOf = (text: string) => text.length * 6;
const of = (labels: string[], at: number[], zone = " UTC", edge = 300) => labelled(labels, at, zone, edge, widthOf);

it("says the zone once, at the first time", () => {
  expect(of(["08:00", "08:05", "08:10"], [20, 120, 220])).toEqual(["08:00 UTC", "08:05", "08:10"]);
});

it("does not let the edge cut the zone, nor a time", () => {
  expect(of(["08:10"], [280])).toEqual(["08:10"]);
  expect(of(["08:05", "08:10"], [150, 290])).toEqual(["08:05 UTC", ""]);
});

it("does not write a long zone into the next time, but says it at the next that has room", () => {
  expect(of(["08:00:00", "08:00:30", "08:01:00"], [10, 80, 150], " GMT+5:30")).toEqual(["08:00:00", "08:00:30", "08:01:00 GMT+5:30"]);
});
