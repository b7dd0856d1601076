/** Points of the history as columns for a chart. Pure. */

import type { Point } from "../feed/types";

export type Column = (number | null)[];
export type Pick = (point: Point) => number | undefined;

export interface Columns {
  times: number[];
  values: Column[];
}

/** Seconds without a point after which a line is broken rather than drawn across what nobody saw. */
export const BREAK_S = 3.5;

/** One column per pick, of the points within [from, to]. What a point does not know is null. */
export function columns(points: readonly Point[], from: number, to: number, picks: readonly Pick[], breakS = BREAK_S): Columns {
  const times: number[] = [];
  const values: Column[] = picks.map(() => []);
  let last: number | undefined;
  for (const point of points) {
    if (point.at < from || point.at > to) continue;
    if (last !== undefined && point.at - last > breakS) {
      times.push(last + 1);
      for (const column of values) column.push(null);
    }
    times.push(point.at);
    picks.forEach((pick, i) => values[i]!.push(pick(point) ?? null));
    last = point.at;
  }
  return { times, values };
}

/** Whether points were seen all the time from `from` to `to`: else nothing among them does not mean that there was nothing. */
export function seenThroughout(points: readonly Point[], from: number, to: number, breakS = BREAK_S): boolean {
  let last = from;
  for (const { at } of points) {
    if (at < from || at > to) continue;
    if (at - last > breakS) return false;
    last = at;
  }
  return last > from && to - last <= breakS;
}

/** Running sums, so that each column lies on those before it. A null is nothing, unless no column has a value there. */
export function stack(values: readonly Column[]): Column[] {
  const length = values[0]?.length ?? 0;
  const sums: Column[] = values.map(() => new Array<number | null>(length).fill(null));
  for (let row = 0; row < length; row++) {
    if (values.every((column) => column[row] === null)) continue;
    let sum = 0;
    values.forEach((column, i) => {
      sum += column[row] ?? 0;
      sums[i]![row] = sum;
    });
  }
  return sums;
}

/** The names that weigh most over the points, in alphabetical order; the rest is for whoever draws "others". */
export function busiest(points: readonly Point[], from: number, weigh: (point: Point, add: (name: string, weight: number) => void) => void, most: number): string[] {
  const sums = new Map<string, number>();
  const add = (name: string, weight: number) => void sums.set(name, (sums.get(name) ?? 0) + weight);
  for (const point of points) if (point.at >= from) weigh(point, add);
  return [...sums]
    .filter(([, sum]) => sum > 0)
    .sort(([a, n], [b, m]) => m - n || a.localeCompare(b))
    .slice(0, most)
    .map(([name]) => name)
    .sort();
}

/** A round number at or over the largest value, so that the axis stays still while the line moves. */
export function ceiling(max: number): number {
  if (max <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(max));
  for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) if (max <= step * power * 0.999) return step * power;
  return 10 * power;
}

const FLAT = 6;
const LEAST_AROUND = 0.05;

/** How far an axis around zero goes to both sides. Figures are shown with two decimals: less would be a row of zeros. */
export const reachAround = (min: number, max: number): number => ceiling(Math.max(LEAST_AROUND, Math.abs(min), Math.abs(max)));

/**
 * How far up an axis has to go: to the largest value, and to limits and targets unless all else would then lie flat on
 * the ground; one further up is named in the legend, with an arrow.
 */
export function reach(max: number, limits: readonly Column[]): number {
  const tops = limits.map((column) => column.reduce<number>((top, value) => Math.max(top, value ?? 0), 0));
  if (max <= 0) return Math.max(0, ...tops);
  return Math.max(max, ...tops.filter((top) => top <= FLAT * max));
}
