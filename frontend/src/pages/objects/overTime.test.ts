import { expect, it } from "vitest";
import { endedAt, endOf, isWhole, panelsOf, type OverTime } from "./overTime";

const asked = (changes: Partial<OverTime["figures"]> = {}, known_s = [0, 10, 10, 5]): OverTime => ({
  from: 1000,
  step_s: 10,
  known_s,
  figures: { requests: [null, 20, 0, 5], refused: [null, 5, 0, 0], waited_p95: [null, 0.5, null, 2], attainment: [null, 0.8, null, 1], ...changes } as OverTime["figures"],
});
const panel = (id: string, of = asked()) => panelsOf(of, false, 1040).find((one) => one.id === id)!;

it("counts are drawn per second of what is known of a step, in the middle of it", () => {
  expect(panel("requests").times).toEqual([1005, 1015, 1025, 1035]);
  expect(panel("requests").values).toEqual([[null, 2, 0, 1]]);
  expect(panel("refusals").values[0]).toEqual([null, 0.5, 0, 0]);
});

it("the figure of a step that is not over lies where the chart's axes reach", () => {
  const times = (nowS: number) => panelsOf(asked(), false, nowS)[0]!.times;
  expect(times(1032)).toEqual([1005, 1015, 1025, 1031]);
  expect(times(1012), "a clock that is late").toEqual([1005, 1015, 1025, 1030]);
  for (const nowS of [1012, 1032, 1040, 1090]) expect(times(nowS).at(-1)).toBeLessThanOrEqual(endOf(asked(), nowS));
  expect([endOf(asked(), 1032), endOf(asked(), 1090)]).toEqual([1032, 1040]);
});

it("a step of which nothing is known is a gap, and a duration that no request had is no zero", () => {
  expect(panel("waited").values[1]).toEqual([null, 500, null, 2000]);
  expect(panel("attainment").values[0]).toEqual([null, 0.8, null, 1]);
  expect(panel("requests", asked({}, [0, 0, 0, 0])).values).toEqual([[null, null, null, null]]);
});

it("a figure that an older server does not send is unknown", () => {
  expect(panel("ttft").values).toEqual([[null, null, null, null], [null, null, null, null]]);
});

it("what has not passed yet is not missing", () => {
  expect([isWhole(asked(), 1040), isWhole(asked({}, [10, 10, 10, 0]), 1035), isWhole(asked({}, [10, 10, 10, 0]), 1040)]).toEqual([false, true, false]);
});

it("after the moment from which on nothing is stored, figures are unknown and not zero", () => {
  const cut = endedAt(asked(), 1025);
  expect(panel("requests", cut).values).toEqual([[null, 2, null, null]]);
  expect(panel("waited", cut).values[1]).toEqual([null, 500, null, null]);
  expect(endedAt(asked(), undefined)).toEqual(asked());
  expect(panel("requests", cut).empty).toBe("None was seen, but a part of this time is not known.");
  expect(panel("requests", asked({}, [10, 10, 10, 5])).empty).toBe("No request came in this time.");
});
