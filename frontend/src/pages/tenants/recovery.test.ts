import { expect, it } from "vitest";
import type { Snapshot } from "../../feed/types";
import { reasonOf, standingOf, type Level, type PoolStanding } from "./fleet";
import { watch, NOTHING_SEEN, type Watched } from "./recovery";

const START = 1000;
const RECOVERY_S = 10;
const pool = (level: Level, why = `is ${level}`, name = "a"): PoolStanding => ({ pool: name, level, why });
/** Second by second: what is shown of pool "a" in each. */
function seconds(...levels: Level[]): PoolStanding[] {
  let watched = NOTHING_SEEN;
  return levels.map((level, i) => {
    watched = watch(watched, START + i, [pool(level)]);
    return watched.shown[0]!;
  });
}
const many = (level: Level, n: number): Level[] => Array<Level>(n).fill(level);
const levels = (shown: readonly PoolStanding[]): Level[] => shown.map(({ level }) => level);

it("attainment that swings around its threshold each second is failing all the time, with the figure of that second", () => {
  const snapshot = (attainment: number): Snapshot => ({ pool: "a", seq: 1, at: START, running: 1, slots: 8, slo: { attainment, asked: 120, total: 120 }, backends: { "a-1": { state: "ready", slots: 8 } } });
  let watched = NOTHING_SEEN;
  for (let i = 0; i < 60; i++) {
    const attainment = i % 2 ? 0.901 : 0.899;
    watched = watch(watched, START + i, [{ pool: "a", ...standingOf(snapshot(attainment), undefined, {}) }]);
    const [shown] = watched.shown;
    expect(shown!.level).toBe("failing");
    expect(reasonOf(shown!)).toBe(i % 2 ? "failing until 1 s ago; now: 90.1 % in time of 120 asked; before: 89.9 % in time of 120 asked, should be 90.0 %" : "89.9 % in time of 120 asked, should be 90.0 %");
  }
});

it("what is better is shown as better once it was so for ten seconds", () => {
  const shown = seconds("failing", ...many("healthy", RECOVERY_S + 1));
  expect(levels(shown)).toEqual([...many("failing", RECOVERY_S + 1), "healthy"]);
  expect(shown[4]).toEqual({ pool: "a", level: "failing", why: "is healthy", was: { until: "4 s ago", why: "is failing" } });
  expect(shown.at(-1)).toEqual(pool("healthy"));
});

it("a moment of trouble in between begins the ten seconds anew", () => {
  expect(levels(seconds("at risk", ...many("healthy", 8), "at risk", ...many("healthy", RECOVERY_S + 1)))).toEqual([...many("at risk", 10 + RECOVERY_S), "healthy"]);
});

it("what is worse is shown at once, also while a pool recovers", () => {
  expect(seconds("healthy", "failing")[1]).toEqual(pool("failing"));
  expect(levels(seconds("at risk", "healthy", "failing"))).toEqual(["at risk", "at risk", "failing"]);
});

it("while a pool recovers from trouble other trouble is the present reason, and stays when the worse one is over", () => {
  const shown = seconds("failing", ...many("at risk", RECOVERY_S + 1), ...many("healthy", RECOVERY_S + 1));
  expect(levels(shown)).toEqual([...many("failing", RECOVERY_S + 1), ...many("at risk", RECOVERY_S + 1), "healthy"]);
  expect(shown[1]!.why).toBe("is at risk");
  expect(shown[RECOVERY_S + 1]).toEqual(pool("at risk"));
  expect(levels(seconds("failing", "at risk", "healthy"))).toEqual(many("failing", 3));
});

it("trouble that was less than the present one is not shown after it for longer", () => {
  expect(levels(seconds("at risk", "failing", ...many("healthy", RECOVERY_S + 1)))).toEqual(["at risk", ...many("failing", RECOVERY_S + 1), "healthy"]);
});

it("there is nothing to recover from but trouble: a pool that wakes, is asked or falls asleep is shown as it is", () => {
  const course: Level[] = ["asleep", "idle", "healthy", "idle", "asleep", "healthy"];
  expect(seconds(...course)).toEqual(course.map((level) => pool(level)));
});

it("unknown is shown at once, whatever a pool recovers from, and is over at once", () => {
  expect(seconds("failing", "unknown")[1]).toEqual(pool("unknown"));
  expect(levels(seconds("failing", "healthy", "unknown"))).toEqual(["failing", "failing", "unknown"]);
  expect(levels(seconds("healthy", "unknown", "healthy"))).toEqual(["healthy", "unknown", "healthy"]);
});

it("unknown is not better: after it the ten seconds begin anew, and a minute after it was seen trouble is forgotten", () => {
  expect(levels(seconds("failing", ...many("healthy", 8), "unknown", ...many("healthy", RECOVERY_S + 1)))).toEqual([...many("failing", 9), "unknown", ...many("failing", RECOVERY_S), "healthy"]);
  expect(levels(seconds("failing", ...many("unknown", 59), "healthy")).at(-1)).toBe("healthy");
  const flapping = seconds("failing", ...Array.from({ length: 12 }, () => [...many("healthy", 5), "unknown" as const]).flat());
  expect(flapping[59]).toMatchObject({ level: "failing", was: { until: "59 s ago" } });
  expect(levels(flapping.slice(61))).not.toContain("failing");
});

it("a page that was just opened knows of no trouble before, nor does one that looked away, whose clock was set back or whose thresholds changed", () => {
  expect(watch(NOTHING_SEEN, START, [pool("healthy")]).shown).toEqual([pool("healthy")]);
  const failed = watch(NOTHING_SEEN, START, [pool("failing")], "90 %");
  const then = (now: number, by = "90 %") => watch(failed, now, [pool("healthy")], by).shown[0]!.level;
  expect(then(START + RECOVERY_S)).toBe("failing");
  expect(then(START + RECOVERY_S + 1)).toBe("healthy");
  expect(then(START - 1)).toBe("healthy");
  expect(then(START + 1, "50 %")).toBe("healthy");
});

it("a pool that disappears takes its trouble along, and others keep theirs", () => {
  const step = (watched: Watched, now: number, ...pools: PoolStanding[]) => watch(watched, now, pools);
  let watched = step(NOTHING_SEEN, START, pool("failing"), pool("failing", "", "b"));
  watched = step(watched, START + 1, pool("healthy", "", "b"));
  expect(watched.shown.map(({ pool: name, level }) => [name, level])).toEqual([["b", "failing"]]);
  watched = step(watched, START + 2, pool("healthy"), pool("healthy", "", "b"));
  expect(watched.shown.map(({ pool: name, level }) => [name, level])).toEqual([["a", "healthy"], ["b", "failing"]]);
});

it("what was seen is not changed by the next second", () => {
  const failed = watch(NOTHING_SEEN, START, [pool("failing")]);
  const before = structuredClone(failed);
  watch(failed, START + 5, [pool("healthy")]);
  watch(failed, START + 6, [pool("unknown")]);
  expect(failed).toEqual(before);
  expect(NOTHING_SEEN.shown).toEqual([]);
});
