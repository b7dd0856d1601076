/** What each chart of the dashboard shows. Pure: from points to series. */

import type { EntitlementPoint, Point, TenantPoint, TierFigures, TierPoint } from "../feed/types";
import { compact, duration, percent, rate, text, words } from "../lib/format";
import { BREAK_S, busiest, columns, seenThroughout, type Column, type Pick } from "./columns";
import { category, neutral, percentileColors, shaded, tenantColor, type ColorBook, type TenantSlots } from "./palette";

export interface Series {
  label: string;
  color: string;
  /** Lies on the stacked series before it, filled. */
  stacked?: boolean;
  dashed?: boolean;
}

export type Group = "load" | "resources" | "promises" | "standing" | "hardware";

export interface Panel {
  id: string;
  /** Part of the overview it belongs to. */
  group?: Group;
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
  /** Durations in ms: the axis has the steps of a clock. */
  time?: boolean;
  /** Counts: the axis has whole numbers only. */
  whole?: boolean;
  /** Values may be below zero: the axis goes as far down as up. */
  signed?: boolean;
  /** Few of them, far apart: each is drawn as a dot as well. */
  points?: boolean;
  /** Zero all the time is nothing to see. */
  quiet?: boolean;
  empty: string;
}

/** Whether nothing is known of it: an axis would have figures of nothing. */
export const blank = ({ values }: Panel): boolean => values.every((column) => column.every((value) => value === null));

/** A figure of an axis without the zeros that only its neighbours need: "0.50x" is 0.5x, "1.00 s" is 1 s. */
export const plainTick = (shown: string): string => shown.replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");

/** Colours of a pool's names. */
export interface ColorBooks {
  reasons: ColorBook;
  tiers: ColorBook;
  backends: ColorBook;
  parts: ColorBook;
}

interface Context extends ColorBooks {
  /** Which colour each tenant has, everywhere. */
  slots: TenantSlots;
  /** The tenant of each entitlement. */
  owners: Readonly<Record<string, string>>;
  points: readonly Point[];
  from: number;
  to: number;
  dark: boolean;
  /** Seconds between points; 1 for the live ones. */
  step?: number;
  /** What each tier promises. */
  tiersNow?: Record<string, TierFigures>;
  /** Entitlements that are owed what they missed. */
  elastic?: readonly string[];
}

const OTHERS = "others";
const MOST_LINES = 7;
const ms = (value: number): string => text(duration(value));
/** Of an axis: whole minutes where there are minutes. */
const msTick = (value: number): string => (value >= 60_000 ? `${Number((value / 60_000).toFixed(1))} min` : ms(value));
const share = (value: number): string => text(percent(value));
const figure = (value: number): string => (Math.abs(value) >= 100 ? compact(value) : Number(value.toPrecision(3)).toString());
const signedRate = (value: number): string => {
  const shown = Number(value.toFixed(2));
  return shown > 0 ? `+${shown}` : shown === 0 ? "0" : String(shown);
};

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
    MOST_LINES,
  );
}

function byTenant(context: Context, names: string[], measure: (tenant: TenantPoint) => number | undefined, total: Pick): { series: Series[]; picks: Pick[] } {
  const { points, from, dark, slots } = context;
  const of = (point: Point, name: string) => {
    const tenant = point.tenants?.[name];
    return tenant ? (measure(tenant) ?? 0) : point.tenants ? 0 : undefined;
  };
  const rest: Pick = (point) => {
    const all = total(point);
    if (all === undefined) return undefined;
    return Math.max(0, all - names.reduce((sum, name) => sum + (of(point, name) ?? 0), 0));
  };
  const series: Series[] = names.map((label) => ({ label, color: tenantColor(label, slots, dark), stacked: true }));
  const picks: Pick[] = names.map((name) => (point) => of(point, name));
  if (names.length === 0 || points.some((point) => point.at >= from && (rest(point) ?? 0) > 0.5)) {
    series.push({ label: names.length ? OTHERS : "all", color: neutral(dark), stacked: true });
    picks.push(rest);
  }
  return { series, picks };
}

/** What waits, by the queues, bands and bubbles of the policy. */
function byPart({ points, from, dark, parts }: Context): Drawn {
  const names = busiest(points, from, (point, add) => Object.entries(point.parts ?? {}).forEach(([name, part]) => add(name, part.waiting ?? 0)), MOST_LINES + 1);
  const colors = parts.assign(names);
  return {
    series: names.length ? names.map((label) => ({ label, color: category(colors.get(label)!, dark), stacked: true })) : [{ label: "all", color: neutral(dark), stacked: true }],
    picks: names.length ? names.map((name) => (point) => (point.depth === undefined || (point.depth > 0 && !point.parts) ? undefined : (point.parts?.[name]?.waiting ?? 0))) : [(point) => point.depth],
  };
}

function byReason(context: Context): { series: Series[]; picks: Pick[] } {
  const { points, from, dark, reasons } = context;
  const names = busiest(
    points,
    from,
    (point, add) => {
      for (const reason in point.refusals) add(reason, point.refusals[reason]!);
    },
    MOST_LINES,
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

type Drawn = { series: Series[]; picks: Pick[] };

/** One resource, split by entitlement, with what is there of it. */
/** Entitlements in their tenant's colour; several of one tenant in shades of it, by their names. */
function entitlementColors(names: readonly string[], { owners, slots, dark }: Context): Map<string, string> {
  return new Map(
    names.map((name) => {
      const tenant = owners[name] ?? name;
      const own = Object.keys(owners).filter((other) => owners[other] === tenant).sort();
      return [name, shaded(tenantColor(tenant, slots, dark), Math.max(0, own.indexOf(name)), dark)];
    }),
  );
}

function byEntitlement(context: Context, measure: (e: EntitlementPoint) => number | undefined, limit?: { label: string; pick: Pick }): Drawn {
  const { points, from, dark } = context;
  const names = busiest(points, from, (point, add) => Object.entries(point.entitlements ?? {}).forEach(([name, e]) => add(name, measure(e) ?? 0)), MOST_LINES);
  const colors = entitlementColors(names, context);
  const of = (point: Point, name: string) => (point.entitlements ? (measure(point.entitlements[name] ?? {}) ?? 0) : undefined);
  const series: Series[] = names.map((label) => ({ label, color: colors.get(label)!, stacked: true }));
  const picks: Pick[] = names.map((name) => (point) => of(point, name));
  const rest: Pick = (point) => {
    if (!point.entitlements) return undefined;
    const all = Object.values(point.entitlements).reduce((sum, e) => sum + (measure(e) ?? 0), measure(point.rest ?? {}) ?? 0);
    return Math.max(0, all - names.reduce((sum, name) => sum + (of(point, name) ?? 0), 0));
  };
  if (names.length === 0 || points.some((point) => point.at >= from && (rest(point) ?? 0) > 0)) {
    series.push({ label: names.length ? OTHERS : "all", color: neutral(dark), stacked: true });
    picks.push(rest);
  }
  if (limit) {
    series.push({ label: limit.label, color: neutral(dark), dashed: true });
    picks.push(limit.pick);
  }
  return { series, picks };
}

/** Where entitlements stand: one line each, those furthest from zero first. */
function standing(context: Context, measure: (e: EntitlementPoint) => number | undefined): Drawn {
  const { points, from, elastic } = context;
  const owed = new Set(elastic ?? []);
  const names = busiest(points, from, (point, add) => Object.entries(point.entitlements ?? {}).forEach(([name, e]) => owed.has(name) && add(name, Math.abs(measure(e) ?? 0))), MOST_LINES);
  const colors = entitlementColors(names, context);
  return {
    series: names.map((label) => ({ label, color: colors.get(label)! })),
    picks: names.map((name) => (point) => measure(point.entitlements?.[name] ?? {})),
  };
}

function tierNames({ points, from, tiersNow }: Context): string[] {
  const names = new Set(Object.keys(tiersNow ?? {}));
  for (const point of points) if (point.at >= from) for (const name in point.tiers) names.add(name);
  return [...names].sort().slice(0, MOST_LINES);
}

/** A percentile of each tier, with what it promises as a dashed line of the same colour. */
function againstTarget(context: Context, measure: (t: TierPoint) => number | undefined, target: (t: TierFigures) => number | undefined): Drawn {
  const names = tierNames(context);
  const colors = context.tiers.assign(names);
  const drawn: Drawn = { series: [], picks: [] };
  for (const name of names) {
    const color = category(colors.get(name)!, context.dark);
    const promised = target(context.tiersNow?.[name] ?? {});
    if (promised === undefined) continue;
    drawn.series.push({ label: name, color }, { label: `${name} target`, color, dashed: true });
    drawn.picks.push(
      (point) => measure(point.tiers?.[name] ?? {}),
      () => promised * 1000,
    );
  }
  return drawn;
}

function violations(context: Context): Drawn {
  const names = tierNames(context);
  const colors = context.tiers.assign(names);
  return {
    series: names.map((label) => ({ label, color: category(colors.get(label)!, context.dark), stacked: true })),
    picks: names.map((name) => (point) => (point.tiers ? (point.tiers[name]?.violations ?? 0) / 60 : point.violations === undefined ? undefined : 0)),
  };
}

function perBackend({ points, from, dark, backends }: Context, measure: (b: { gpu?: number; memory?: number }) => number | undefined): Drawn {
  const names = [...new Set(points.filter((point) => point.at >= from).flatMap((point) => Object.keys(point.backends ?? {})))].sort((a, b) => a.localeCompare(b, "en", { numeric: true })).slice(0, MOST_LINES + 1);
  const colors = backends.assign(names);
  return {
    series: names.map((label) => ({ label, color: category(colors.get(label)!, dark) })),
    picks: names.map((name) => (point) => measure(point.backends?.[name] ?? {})),
  };
}

export const groups: Record<Group, string> = {
  load: "Load",
  resources: "Resources, by entitlement",
  promises: "SLOs",
  standing: "Standing of elastic entitlements",
  hardware: "Hardware",
};

const IN_PERIOD = " in this period."; // how a panel's text ends that speaks of all of it

/** What stands where nothing is drawn of a time that was not seen from its beginning to its end. */
export const unseen = (all: boolean): string => (all ? "Nothing is known of this time." : "None was seen, but a part of this time is not known.");

export function panels(context: Context): Panel[] {
  const { points, from, to, dark, step = 1 } = context;
  const [usual, high, worst] = percentileColors(dark);
  const breakS = step > 1 ? 2.5 * step : BREAK_S;
  const whole = seenThroughout(points, from, to, breakS);
  const make = (panel: Omit<Panel, "times" | "values" | "series">, drawn: Drawn): Panel => ({ ...panel, empty: whole || !panel.empty.endsWith(IN_PERIOD) ? panel.empty : unseen(!points.some(({ at }) => at >= from && at <= to)), series: drawn.series, ...columns(points, from, to, drawn.picks, breakS) });
  const tiered = (id: string, of: string, target: string, none: string, drawn: Drawn): Panel =>
    make({ id, group: "promises", title: `${of} p95 against target`, unit: "by tier", format: ms, tick: msTick, time: true, whole: true, empty: drawn.series.length > 0 ? none + IN_PERIOD : `No tier of this pool has a target for ${target}.` }, drawn);
  const percentile = (name: "ttft" | "tbt" | "ttlt"): Drawn => ({
    series: [
      { label: "p50", color: usual },
      { label: "p95", color: high },
      { label: "p99", color: worst },
    ],
    picks: [(p) => p[`${name}_p50`], (p) => p[`${name}_p95`], (p) => p[`${name}_p99`]],
  });

  const names = tenantsShown(context);
  const ratio = { format: share, tick: (value: number) => `${Math.round(value * 100)} %`, top: 1 };
  return [
    make({ id: "queue", group: "load", title: "Queue depth by tenant", unit: "requests", format: compact, whole: true, quiet: true, empty: "Nothing waited in this period." }, byTenant(context, names, (t) => t.waiting, (p) => p.depth)),
    make({ id: "parts", group: "load", title: "Queue depth by queue", unit: "requests", format: compact, whole: true, quiet: true, empty: "Nothing waited in this period." }, byPart(context)),
    make({ id: "refusals", group: "load", title: "Refusals by reason", unit: "requests/s", format: rate, quiet: true, empty: "No request was refused in this period." }, byReason(context)),
    make(
      { id: "tokens", group: "load", title: "Throughput", unit: "tokens/s", format: compact, whole: true, quiet: true, empty: "No tokens in this period." },
      {
        series: [
          { label: "in (prompt)", color: category(0, dark) },
          { label: "out (generated)", color: category(1, dark) },
        ],
        picks: [(p) => p.in, (p) => p.out],
      },
    ),
    make({ id: "by-tokens", group: "resources", title: "Tokens served", unit: "tokens/s", format: compact, whole: true, quiet: true, empty: "No tokens in this period." }, byEntitlement(context, (e) => e.tokens)),
    make(
      { id: "by-kv", group: "resources", title: "KV cache reserved", unit: "tokens", format: compact, whole: true, quiet: true, empty: "No KV cache was reserved in this period." },
      byEntitlement(context, (e) => e.kv, { label: "capacity", pick: (p) => p.kv_tokens }),
    ),
    make(
      { id: "running", group: "resources", title: "Running, against slots", unit: "requests", format: compact, whole: true, quiet: true, empty: "Nothing ran in this period." },
      byEntitlement(context, (e) => e.running, { label: "slots", pick: (p) => p.slots }),
    ),
    make({ id: "violations", group: "promises", title: "SLO violations by tier", unit: "requests/s", format: rate, quiet: true, empty: "No SLO was violated in this period." }, violations(context)),
    make({ id: "ttft", group: "promises", title: "Time to first token", unit: "over 60 s", format: ms, tick: msTick, time: true, whole: true, empty: `No streamed answer began${IN_PERIOD}` }, percentile("ttft")),
    make({ id: "ttlt", group: "promises", title: "Time to last token", unit: "over 60 s", format: ms, tick: msTick, time: true, whole: true, empty: "No request completed in this period." }, percentile("ttlt")),
    tiered("ttft-tiers", "TTFT", "the time to first token", "No streamed answer of such a tier began", againstTarget(context, (t) => t.ttft_p95, (t) => t.ttft_s)),
    tiered("tbt-tiers", "TBT", "the time between tokens", "No streamed answer of such a tier was written", againstTarget(context, (t) => t.tbt_p95, (t) => t.tbt_s)),
    tiered("ttlt-tiers", "TTLT", "the time to last token", "No answer of such a tier ended", againstTarget(context, (t) => t.ttlt_p95, (t) => t.ttlt_s)),
    make({ id: "debt", group: "standing", title: "Debt", unit: "above 0: it received less than its baseline", format: signedRate, signed: true, quiet: true, empty: "No elastic entitlement is above or below its baseline." }, standing(context, (e) => e.debt)),
    make({ id: "weight", group: "standing", title: "Weight", unit: "the larger goes first", format: figure, empty: "No elastic entitlement had requests in flight." }, standing(context, (e) => e.weight)),
    make({ id: "gpu", group: "hardware", title: "GPU utilization", unit: "% per backend", ...ratio, empty: "No backend reported its GPU in this period." }, perBackend(context, (b) => b.gpu)),
    make({ id: "memory", group: "hardware", title: "GPU memory", unit: "% per backend", ...ratio, empty: "No backend reported its GPU memory in this period." }, perBackend(context, (b) => b.memory)),
  ];
}
