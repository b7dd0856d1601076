/** What each chart of the dashboard shows. Pure: from points to series. */

import type { Point, TenantPoint } from "../feed/types";
import { compact, duration, percent, rate, text, words } from "../lib/format";
import { busiest, columns, type Column, type Pick } from "./columns";
import { category, neutral, percentileColors, type ColorBook } from "./palette";

export interface Series {
  label: string;
  color: string;
  /** Lies on the stacked series before it, filled. */
  stacked?: boolean;
  dashed?: boolean;
}

export interface Panel {
  id: string;
  title: string;
  unit: string;
  series: Series[];
  times: number[];
  values: Column[];
  format: (value: number) => string;
  /** Of the axis, where it is shorter. */
  tick?: (value: number) => string;
  /** Fixed top of the axis. */
  top?: number;
  /** Counts: the axis has whole numbers only. */
  whole?: boolean;
  /** Few of them, far apart: each is drawn as a dot as well. */
  points?: boolean;
  /** Zero all the time is nothing to see. */
  quiet?: boolean;
  empty: string;
}

interface Context {
  points: readonly Point[];
  from: number;
  to: number;
  dark: boolean;
  tenants: ColorBook;
  reasons: ColorBook;
}

const OTHERS = "others";
const MOST = 7;
const ms = (value: number): string => text(duration(value));
const share = (value: number): string => text(percent(value));

function tenantsShown({ points, from }: Context): string[] {
  return busiest(
    points,
    from,
    (point, add) => {
      for (const name in point.tenants) {
        const tenant = point.tenants[name]!;
        add(name, (tenant.waiting ?? 0) + (tenant.running ?? 0));
      }
    },
    MOST,
  );
}

function byTenant(context: Context, names: string[], measure: (tenant: TenantPoint) => number | undefined, total: Pick): { series: Series[]; picks: Pick[] } {
  const { points, from, dark, tenants } = context;
  const colors = tenants.assign(names);
  const of = (point: Point, name: string) => {
    const tenant = point.tenants?.[name];
    return tenant ? (measure(tenant) ?? 0) : point.tenants ? 0 : undefined;
  };
  const rest: Pick = (point) => {
    const all = total(point);
    if (all === undefined) return undefined;
    return Math.max(0, all - names.reduce((sum, name) => sum + (of(point, name) ?? 0), 0));
  };
  const series: Series[] = names.map((label) => ({ label, color: category(colors.get(label)!, dark), stacked: true }));
  const picks: Pick[] = names.map((name) => (point) => of(point, name));
  if (names.length === 0 || points.some((point) => point.at >= from && (rest(point) ?? 0) > 0.5)) {
    series.push({ label: names.length ? OTHERS : "all", color: neutral(dark), stacked: true });
    picks.push(rest);
  }
  return { series, picks };
}

function byReason(context: Context): { series: Series[]; picks: Pick[] } {
  const { points, from, dark, reasons } = context;
  const names = busiest(
    points,
    from,
    (point, add) => {
      for (const reason in point.refusals) add(reason, point.refusals[reason]!);
    },
    MOST,
  );
  const colors = reasons.assign(names);
  const rates = (point: Point, name: string) => (point.refusals ? (point.refusals[name] ?? 0) / 60 : undefined);
  const series: Series[] = names.map((name) => ({ label: words(name), color: category(colors.get(name)!, dark), stacked: true }));
  const picks: Pick[] = names.map((name) => (point) => rates(point, name));
  // The server's history knows how many, not why.
  const unknown: Pick = (point) =>
    point.refusals ? Math.max(0, total(point.refusals) - names.reduce((sum, name) => sum + (point.refusals![name] ?? 0), 0)) / 60 : point.refused;
  if (names.length === 0 || points.some((point) => point.at >= from && (unknown(point) ?? 0) > 0)) {
    series.push({ label: names.length ? "other or not recorded" : "all reasons", color: neutral(dark), stacked: true });
    picks.push(unknown);
  }
  return { series, picks };
}

const total = (counts: Record<string, number>): number => Object.values(counts).reduce((a, b) => a + b, 0);

export function panels(context: Context): Panel[] {
  const { points, from, to, dark } = context;
  const [usual, high, worst] = percentileColors(dark);
  const make = (panel: Omit<Panel, "times" | "values">, picks: Pick[]): Panel => ({ ...panel, ...columns(points, from, to, picks) });

  const names = tenantsShown(context);
  const queue = byTenant(context, names, (t) => t.waiting, (p) => p.depth);
  const running = byTenant(context, names, (t) => t.running, (p) => p.running);
  const refused = byReason(context);
  return [
    make({ id: "queue", title: "Queue depth by tenant", unit: "requests", series: queue.series, format: compact, whole: true, quiet: true, empty: "Nobody waited in this time." }, queue.picks),
    make(
      {
        id: "running",
        title: "Running, against slots",
        unit: "requests",
        series: [...running.series, { label: "slots", color: neutral(dark), dashed: true }],
        format: compact,
        whole: true,
        quiet: true,
        empty: "Nothing ran in this time.",
      },
      [...running.picks, (p) => p.slots],
    ),
    make(
      {
        id: "tokens",
        title: "Throughput",
        unit: "tokens/s",
        series: [
          { label: "in (prompt)", color: category(0, dark) },
          { label: "out (generated)", color: category(1, dark) },
        ],
        format: compact,
        whole: true,
        quiet: true,
        empty: "No tokens in this time.",
      },
      [(p) => p.in, (p) => p.out],
    ),
    make(
      {
        id: "ttft",
        title: "Time to first token",
        unit: "over 60 s",
        series: [
          { label: "p50", color: usual },
          { label: "p95", color: high },
          { label: "p99", color: worst },
        ],
        format: ms,
        whole: true,
        empty: "No request reached its first token in this time.",
      },
      [(p) => p.ttft_p50, (p) => p.ttft_p95, (p) => p.ttft_p99],
    ),
    make({ id: "refusals", title: "Refusals by reason", unit: "requests/s", series: refused.series, format: rate, quiet: true, empty: "Nothing was refused in this time." }, refused.picks),
    make(
      {
        id: "usage",
        title: "KV cache and GPU",
        unit: "% in use",
        series: [
          { label: "KV cache", color: category(2, dark) },
          { label: "GPU (mean)", color: category(3, dark) },
        ],
        format: share,
        tick: (value) => `${Math.round(value * 100)} %`,
        top: 1,
        empty: "No replica reported its use in this time.",
      },
      [(p) => p.kv, (p) => p.gpu],
    ),
  ];
}
