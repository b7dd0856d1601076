/** The heat map of requests: its axes, and what a brushed part of it asks for. Pure. */

import type { Explored, Filters } from "../../api/requests";
import { seconds, text } from "../../lib/format";

export type Heat = Explored["heat"];
export const MEASURES = [
  { value: "waited", label: "Waited" },
  { value: "ttft", label: "TTFT" },
  { value: "total", label: "Total" },
] as const;
export type Measure = (typeof MEASURES)[number]["value"];

/** Rows that hold something, with one empty one to either side, so that a few durations fill the height. */
export function rowsOf(heat: Heat): { low: number; high: number } {
  const levels = heat.cells.map((cell) => cell[1]!);
  if (levels.length === 0) return { low: 0, high: heat.levels_s.length };
  return { low: Math.max(0, Math.min(...levels) - 1), high: Math.min(heat.levels_s.length, Math.max(...levels) + 1) };
}

export const floorOf = (heat: Heat, level: number): number => (level === 0 ? 0 : heat.levels_s[level - 1]!);
export const ceilingOf = (heat: Heat, level: number): number | undefined => heat.levels_s[level];

/** "from 2 s to 5 s", "over 1,000 s" */
export function levelLabel(heat: Heat, level: number): string {
  const top = ceilingOf(heat, level);
  return top === undefined ? `over ${text(seconds(floorOf(heat, level)))}` : level === 0 ? `under ${text(seconds(top))}` : `${text(seconds(floorOf(heat, level)))} to ${text(seconds(top))}`;
}

export const timeOf = (heat: Heat, column: number): number => heat.from! + ((heat.to! - heat.from!) / heat.bins) * column;

interface Part {
  left: number; // columns and levels, both ends included
  right: number;
  low: number;
  high: number;
}

/** The part between two corners, in whichever direction it was drawn. */
export const between = (a: { column: number; level: number }, b: { column: number; level: number }): Part => ({
  left: Math.min(a.column, b.column),
  right: Math.max(a.column, b.column),
  low: Math.min(a.level, b.level),
  high: Math.max(a.level, b.level),
});

/** The filters of a part: its time, and its durations unless all of them are in it. */
export function asked(heat: Heat, part: Part): Partial<Filters> {
  const { low, high } = rowsOf(heat);
  const measure = heat.measure;
  const under = ceilingOf(heat, part.high);
  const over = floorOf(heat, part.low);
  return {
    from: new Date(timeOf(heat, part.left) * 1000).toISOString(),
    to: new Date(timeOf(heat, part.right + 1) * 1000).toISOString(),
    [`${measure}_over`]: part.low > low && over > 0 ? String(over) : "",
    [`${measure}_under`]: part.high < high && under !== undefined ? String(under) : "",
  };
}

/** 0 to 1: a cell's share of the fullest one, by its logarithm, so that few are seen beside many. */
export const weight = (requests: number, most: number): number => (most <= 1 ? 1 : 0.15 + 0.85 * (Math.log(requests) / Math.log(most)));
