import { expect, it } from "vitest";
import { joined, linkTo, question, rangeOf } from "./range";

it("a young history fills the width, a long window does not pretend", () => {
  expect(rangeOf(5, 1000, null, null, 900)).toEqual({ from: 900, to: 1000 });
  expect(rangeOf(60, 10_000, null, null, 9900)).toEqual({ from: 6400, to: 10_000 });
});

it("a moment that was linked to stands still, and a zoom wins over it", () => {
  expect(rangeOf(15, 9000, 5000, null, 8000)).toEqual({ from: 4100, to: 5000 });
  expect(rangeOf(15, 9000, 5000, { from: 1, to: 2 }, 8000)).toEqual({ from: 1, to: 2 });
});

it("the server is asked only for what the page did not see itself", () => {
  expect(question({ from: 9700, to: 10_000 }, 10_000, true)).toBeNull();
  expect(question({ from: 6400, to: 10_000 }, 10_000, true)).toEqual({ minutes: 60, until: 0 });
  expect(question({ from: 1000, to: 1090 }, 10_000, false)).toEqual({ minutes: 2, until: 1090 });
});

it("what came since the server's last step is added in the same steps", () => {
  const live = Array.from({ length: 40 }, (_, i) => ({ at: 95 + i }));
  expect(joined([{ at: 90 }, { at: 100 }], 10, live).map((p) => p.at)).toEqual([90, 100, 110, 120, 130]);
});

it("a link names the moment and how long before it", () => {
  expect(linkTo("http://x/?pool=llama&wall=1", { from: 400.2, to: 1000.4 })).toBe("http://x/?pool=llama&at=1000&window=11");
});
