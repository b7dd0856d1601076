/** Estimates as charts show them. Pure. */

import type { EstimatesHistory, FactorLine } from "../../api/operate";
import type { Column } from "../../charts/columns";
import { category } from "../../charts/palette";
import type { Panel } from "../../charts/panels";
import { compact, percent, text } from "../../lib/format";

export const WINDOWS = [
  { value: 1, label: "1 h" },
  { value: 6, label: "6 h" },
  { value: 24, label: "24 h" },
  { value: 168, label: "7 d" },
  { value: 720, label: "30 d" },
] as const;

const MOST_LINES = 8;
const MOST_CORRECTIONS = 8;
/** 90 of 100 answers have to lie within the limit. */
export const COVERED = 0.9;

const times = (value: number): string => `${value.toFixed(2)}x`;
const share = (value: number): string => text(percent(value));
const STEP_S = { minute: 60, hour: 3600, day: 86_400 } as const;

/** Columns over the steps of time; steps without requests are breaks. */
export function steps({ step, points }: Pick<EstimatesHistory, "step" | "points">, picks: readonly ((point: EstimatesHistory["points"][number]) => number | null)[]): { times: number[]; values: Column[] } {
  const at: number[] = [];
  const values: Column[] = picks.map(() => []);
  for (const point of points) {
    const last = at.at(-1);
    if (last !== undefined && point.at - last > 5 * STEP_S[step]) {
      at.push(last + STEP_S[step]);
      for (const column of values) column.push(null);
    }
    at.push(point.at);
    picks.forEach((pick, i) => values[i]!.push(pick(point)));
  }
  return { times: at, values };
}

export function errorPanels(history: EstimatesHistory, dark: boolean): Panel[] {
  const target = { label: "target", color: category(4, dark), dashed: true };
  const empty = "No predicted answer completed in this period.";
  return [
    {
      id: "ratio",
      title: "Actual to expected length",
      unit: "1.00x is right",
      series: [{ label: "actual / expected", color: category(0, dark) }, { ...target, label: "right" }],
      format: times,
      points: true,
      empty,
      ...steps(history, [(p) => p.ratio, () => 1]),
    },
    {
      id: "coverage",
      title: "Answers within the 90 % limit",
      unit: "share of answers",
      series: [{ label: "covered", color: category(2, dark) }, target],
      format: share,
      tick: (value) => `${Math.round(value * 100)} %`,
      top: 1,
      points: true,
      empty,
      ...steps(history, [(p) => p.coverage90, () => COVERED]),
    },
    {
      id: "mae",
      title: "Mean error of a prediction",
      unit: "tokens",
      series: [{ label: "mean absolute error", color: category(1, dark) }],
      format: compact,
      points: true,
      empty,
      ...steps(history, [(p) => p.mae]),
    },
  ];
}

const factorName = (line: Pick<FactorLine, "pool" | "scope" | "name" | "category">, manyPools: boolean): string =>
  [manyPools ? line.pool : "", line.name, line.category].filter(Boolean).join(" · ");

/** The most taught lines of one scope on one axis of time. */
export function factorPanel(lines: readonly FactorLine[], scope: string, dark: boolean): Panel {
  const shown = lines.filter((line) => line.scope === scope).slice(0, MOST_LINES);
  const manyPools = new Set(lines.map((line) => line.pool)).size > 1;
  const at = [...new Set(shown.flatMap((line) => line.points.map(([time]) => time)))].sort((a, b) => a - b);
  const values = shown.map((line) => {
    const known = new Map(line.points);
    return at.map((time) => known.get(time) ?? null);
  });
  return {
    id: "factors",
    title: scope === "source" ? "Correction of each predictor's 90 % limit" : scope === "category" ? "What new tenants start from" : `Correction of the expected length by ${scope}`,
    unit: "factor; 1.00x is no correction",
    series: shown.map((line, i) => ({ label: factorName(line, manyPools), color: category(i, dark) })),
    times: at,
    values,
    format: times,
    points: at.length < 30,
    empty: "Nothing was learned in this period. Gateways store what they learn every five minutes.",
  };
}

/** In words, whether predictions can be trusted: what is off, and by how much. */
export function verdict(ratio: number | undefined, coverage: number | undefined): { tone: "good" | "warn"; text: string } | null {
  if (ratio === undefined || coverage === undefined) return null;
  if (ratio > 1.25) return { tone: "warn", text: `Answers are ${times(ratio)} as long as expected` };
  if (ratio < 0.8) return { tone: "warn", text: `Answers are only ${times(ratio)} as long as expected` };
  if (coverage < 0.85) return { tone: "warn", text: `Only ${share(coverage)} lie within the 90 % limit` };
  return { tone: "good", text: "Predictions are accurate" };
}

/** Which limits were corrected, the furthest from 1 first; a factor that reads as 1.00x corrects nothing. */
export function correctedLimits(learned: readonly { tenant: string; source: string; factor: number }[]): string {
  const changed = learned.filter(({ factor }) => factor.toFixed(2) !== "1.00").sort((a, b) => Math.abs(Math.log(b.factor)) - Math.abs(Math.log(a.factor)));
  if (changed.length === 0) return "No limit had to be corrected.";
  const named = changed.slice(0, MOST_CORRECTIONS).map(({ tenant, source, factor }) => `${tenant}, ${source}: ${factor.toFixed(2)}x`);
  const rest = changed.length - named.length;
  return `Corrected limits: ${named.join("; ")}${rest ? `; and ${rest} more` : ""}.`;
}
