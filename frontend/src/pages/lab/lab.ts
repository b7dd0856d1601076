/** What a lab run found, as plots and tables show it. Pure. */

import type { LabRun, ResultRow, Spread } from "../../api/operate";
import { compact, percent, text } from "../../lib/format";

export interface Figure {
  id: string;
  label: string;
  unit: string;
  /** More is better. */
  more: boolean;
}

export const FIGURES: readonly Figure[] = [
  { id: "kept", label: "In time", unit: "%", more: true },
  { id: "slo", label: "In time, of served", unit: "%", more: true },
  { id: "refused", label: "Refused", unit: "%", more: false },
  { id: "ttft_p50", label: "TTFT p50", unit: "s", more: false },
  { id: "ttft_p95", label: "TTFT p95", unit: "s", more: false },
  { id: "ttft_p99", label: "TTFT p99", unit: "s", more: false },
  { id: "ttlt_p50", label: "TTLT p50", unit: "s", more: false },
  { id: "ttlt_p95", label: "TTLT p95", unit: "s", more: false },
  { id: "ttlt_p99", label: "TTLT p99", unit: "s", more: false },
  { id: "wait_p95", label: "Wait p95", unit: "s", more: false },
  { id: "wait_p99", label: "Wait p99", unit: "s", more: false },
];

/** Those that a run has; runs made before a figure existed lack it. */
export const figuresOf = (results: readonly ResultRow[]): Figure[] => FIGURES.filter(({ id }) => results.some((row) => row.figure === id));

/** Why requests were refused, policy by policy: "queue_full 12 %", the most frequent first. */
export function refusals(results: readonly ResultRow[], policies: readonly string[]): { policy: string; text: string }[] {
  return policies.map((policy) => {
    const found = results.filter((row) => row.policy === policy && row.group === "all" && row.figure.startsWith("refused_") && row.mean > 0).sort((a, b) => b.mean - a.mean);
    return { policy, text: found.length ? found.map((row) => `${row.figure.slice("refused_".length)} ${shownFigure(row.mean, "%")}`).join(", ") : "none" };
  });
}

export const LABELS = Array.from({ length: 26 }, (_, i) => String.fromCharCode(65 + i));

/** "tier:premium" -> "premium"; "all" -> "all requests". */
export const groupName = (group: string): string => (group === "all" ? "all requests" : group.slice(group.indexOf(":") + 1));
const kinds = ["all", "tier", "tenant"];
const kindOf = (group: string): number => kinds.indexOf(group.split(":")[0] ?? "");

export interface Line {
  group: string;
  policy: string;
  own: Spread;
  difference?: ResultRow["difference"];
}

/** One figure, group by group (all, tiers, tenants), the policies in the order they were asked in. */
export function lines(results: readonly ResultRow[], figure: string, policies: readonly string[]): Map<string, Line[]> {
  const found = results.filter((row) => row.figure === figure);
  const groups = [...new Set(found.map((row) => row.group))].sort((a, b) => kindOf(a) - kindOf(b) || a.localeCompare(b));
  return new Map(
    groups.map((group) => [
      group,
      found
        .filter((row) => row.group === group)
        .sort((a, b) => policies.indexOf(a.policy) - policies.indexOf(b.policy))
        .map(({ policy, mean, low, high, difference }) => ({ group, policy, own: { mean, low, high }, ...(difference && { difference }) })),
    ]),
  );
}

/** Where an axis over all lines begins and ends: from 0 unless all lies far from it; shares end at 100. */
export function axis(rows: readonly Line[], figure: Figure): [number, number] {
  const low = Math.min(...rows.map((row) => row.own.low));
  const high = Math.max(...rows.map((row) => row.own.high));
  if (rows.length === 0 || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  if (figure.unit === "%") {
    const from = low > 50 ? Math.max(0, Math.floor((low - 2) / 10) * 10) : 0;
    return [from, 100];
  }
  return [0, high > 0 ? high * 1.05 : 1];
}

export const shownFigure = (value: number, unit: string): string => {
  const size = Math.abs(value);
  const digits = unit === "%" ? 1 : size < 10 ? 2 : 1;
  return `${size >= 10_000 ? compact(value) : value.toFixed(digits)} ${unit}`;
};

/** An interval, cut to what can be: no figure is below zero, no share above 100 %. */
export function shownInterval({ low, high }: Spread, unit: string): string {
  const most = unit === "%" ? Math.min(100, high) : high;
  return `${shownFigure(Math.max(0, low), unit)} to ${shownFigure(most, unit)}`;
}

/** A difference; one of shares is in points. */
export function signedFigure(value: number, unit: string): string {
  const shown = unit === "%" ? `${Math.abs(value).toFixed(1)} points` : shownFigure(Math.abs(value), unit);
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${shown}`;
}

/** Whether a difference to the first policy is for the better, for the worse, none at all, or not sure. */
export function judged(line: Pick<Line, "difference">, figure: Figure): "better" | "worse" | "same" | "unsure" | null {
  if (!line.difference) return null;
  const { mean, low, high, sure } = line.difference;
  if (mean === 0 && low === 0 && high === 0) return "same";
  if (!sure) return "unsure";
  return mean > 0 === figure.more ? "better" : "worse";
}

/** What a run has come to, in words. */
export function progress(run: Pick<LabRun, "state" | "done" | "total">): { ratio: number; text: string } {
  const ratio = run.total > 0 ? run.done / run.total : 0;
  return { ratio, text: run.state === "queued" ? "waiting for a worker" : `${run.done} of ${run.total} replays` };
}

export type Measured = NonNullable<LabRun["trust"]>;

/** The largest differences of simulated from live figures, of a latency and of a tier's attainment: "20.4 % and 2.1 points". */
export const apart = ({ worst, points }: Pick<Measured, "worst"> & { points?: number | undefined }): string => `${text(percent(worst))}${points ? ` and ${points.toFixed(1)} points` : ""}`;

/** Beside every simulated figure: how far such figures of this pool were from what happened. Never green: it was measured at a calibration, and nobody may lead the pool now. */
export function trustOf({ trust, pool }: { trust?: Measured | null | undefined; pool: string }): { tone: "warn" | "plain"; label: string; text: string } {
  if (!trust) return { tone: "plain", label: "error unknown", text: `No calibration of pool ${pool} has compared simulated with live figures yet.` };
  const worst = text(percent(trust.worst));
  return {
    tone: trust.trusted ? "plain" : "warn",
    label: `error up to ${worst}`,
    text: `Simulated against live on pool ${pool}: p50 and p95 of first and last token differ by at most ${worst}${trust.points === undefined ? "" : `, and SLO attainment by at most ${trust.points.toFixed(1)} points`}, on ${trust.requests} requests.${trust.refused ? ` Refused: ${shownFigure(trust.refused[0] ?? 0, "%")} live, ${shownFigure(trust.refused[1] ?? 0, "%")} simulated.` : ""}`,
  };
}

export const ended = (run: Pick<LabRun, "state">): boolean => !["queued", "running"].includes(run.state);

/** "name", or "name:a=1,b=2", as the lab reads policies. */
export function policyText(name: string, params: Record<string, unknown>): string {
  const values = Object.entries(params).map(([key, value]) => `${key}=${value}`);
  return values.length ? `${name}:${values.join(",")}` : name;
}
