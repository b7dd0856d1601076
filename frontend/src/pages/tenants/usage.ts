/** The question a usage table asks, and its answer as rows. Pure. */

import type { UsageRow } from "../../api/catalog";
import { compact, counted } from "../../lib/format";

export const GROUPS = ["tenant", "project", "key", "user", "model", "pool", "entitlement", "tier", "hour", "day", "month", "outcome", "reason"] as const;
export type Group = (typeof GROUPS)[number];

export const RANGES = [
  { id: "24h", label: "24 h", hours: 24 },
  { id: "7d", label: "7 days", hours: 168 },
  { id: "30d", label: "30 days", hours: 720 },
  { id: "90d", label: "90 days", hours: 2160 },
  { id: "month", label: "this month", hours: 0 },
  { id: "last", label: "last month", hours: 0 },
  { id: "dates", label: "dates", hours: 0 },
] as const;

/** A day's beginning in UTC, as bills count; undefined for what is no date. */
function day(text: string | null): number | undefined {
  const at = /^\d{4}-\d{2}-\d{2}$/.test(text ?? "") ? Date.parse(`${text}T00:00:00Z`) : Number.NaN;
  return Number.isNaN(at) ? undefined : at;
}

/** The month's beginning in UTC, so many months away. */
const month = (now: number, away: number): number => Date.UTC(new Date(now).getUTCFullYear(), new Date(now).getUTCMonth() + away, 1);

/** "2026-11", of the month that a range lies in; undefined for ranges that are no month. */
export function monthOf(range: string, now: number): string | undefined {
  return range === "month" || range === "last" ? new Date(month(now, range === "last" ? -1 : 0)).toISOString().slice(0, 7) : undefined;
}

/** The time asked for; whole minutes, so that looking again within one asks the same question. Of dates both count. */
export function span(range: string, now: number, first: string | null = null, last: string | null = null): { from: string; to: string } {
  const told = (from: number, to: number) => ({ from: new Date(from).toISOString(), to: new Date(to).toISOString() });
  const [since, until] = [day(first), day(last)];
  if (range === "month") return told(month(now, 0), month(now, 1));
  if (range === "last") return told(month(now, -1), month(now, 0));
  if (range === "dates" && since !== undefined && until !== undefined && since <= until) return told(since, until + 86_400_000);
  const hours = RANGES.find((one) => one.id === range)?.hours || 24;
  const to = Math.ceil(now / 60_000) * 60_000;
  return { from: new Date(to - hours * 3_600_000).toISOString(), to: new Date(to).toISOString() };
}

/** What was named in the address, if it means something; one group at least. */
export function groupsOf(text: string | null, fallback: Group): Group[] {
  const wanted = (text ?? "").split(",").filter((name): name is Group => (GROUPS as readonly string[]).includes(name));
  return wanted.length ? [...new Set(wanted)] : [fallback];
}

export const toggled = (groups: readonly Group[], group: Group): Group[] =>
  groups.includes(group) ? (groups.length > 1 ? groups.filter((one) => one !== group) : [...groups]) : [...groups, group];

export const tokensOf = (row: UsageRow): number => row.input_tokens + row.output_tokens;

export interface Total {
  requests: number;
  refused: number;
  cancelled: number;
  input: number;
  output: number;
  met: number;
  judged: number;
  slot_s: number;
  /** Requests whose tokens nobody knows; undefined where nobody counted them. */
  unknown: number | undefined;
  /** Undefined where currencies are mixed. */
  cost: { sum: number; currency: string } | undefined;
}

export function totalOf(rows: readonly UsageRow[]): Total {
  const total: Total = { requests: 0, refused: 0, cancelled: 0, input: 0, output: 0, met: 0, judged: 0, slot_s: 0, unknown: 0, cost: { sum: 0, currency: "" } };
  for (const row of rows) {
    total.requests += row.requests;
    total.refused += row.refused;
    total.cancelled += row.cancelled;
    total.input += row.input_tokens;
    total.output += row.output_tokens;
    total.met += row.slo_met;
    total.judged += row.slo_total;
    total.slot_s += row.slot_s;
    total.unknown = total.unknown === undefined || row.tokens_unknown === null ? undefined : total.unknown + row.tokens_unknown;
    if (row.cost === null || (total.cost?.currency && row.currency && total.cost.currency !== row.currency)) total.cost = undefined;
    else if (total.cost) total.cost = { sum: total.cost.sum + row.cost, currency: total.cost.currency || row.currency };
  }
  return total;
}

const OFTEN = 0.05;
const FEW = 10;

/** Where clients give up often, as a sentence: nothing of it is a refusal or a failure, and it is charged. Undefined elsewhere. */
export function givenUp({ cancelled, requests }: Pick<Total, "cancelled" | "requests">): string | undefined {
  if (cancelled < FEW || cancelled < OFTEN * requests) return undefined;
  return `${counted(cancelled, "request")} of ${compact(requests)} were cancelled, as a rule by clients that did not wait for the answer. What was computed for them is charged: a longer time limit in the client, streaming or shorter answers avoid that.`;
}

/** What sums of tokens lack, as a sentence; undefined where they lack nothing. */
export function lacking(unknown: number | undefined): string | undefined {
  if (unknown === 0) return undefined;
  if (unknown === undefined) return "Tokens of requests that were lost with their gateway are in no sum; how many these are is not known of hours that an older version added up.";
  return `${counted(unknown, "request")} that ${unknown === 1 ? "was" : "were"} lost with ${unknown === 1 ? "its" : "their"} gateway ${unknown === 1 ? "has an answer" : "have answers"} of unknown length: only the prompt, as estimated, is in sums and costs.`;
}

/** What is not in a budget's sum, as a sentence; undefined where nothing is missing. */
export function budgetLacks(unknown: number | null | undefined): string | undefined {
  if (unknown === 0) return undefined;
  if (unknown === null || unknown === undefined) return "Answers of requests that were lost with their gateway are not in it; how many these are is not known.";
  return `The answers of ${counted(unknown, "request")} that ${unknown === 1 ? "was lost with its" : "were lost with their"} gateway are not in it.`;
}

/** A group's value as people read it: hours and days without the rest of the ISO text. */
export function shown(group: Group, value: string | number | null | undefined): string {
  const text = String(value ?? "");
  if (group === "hour") return text.slice(0, 16).replace("T", " ");
  if (group === "day") return text.slice(0, 10);
  if (group === "month") return text.slice(0, 7);
  return text || "–";
}

export interface Bar {
  day: string;
  /** Costs by name, in the order of the chart's names. */
  parts: number[];
}

interface Bars {
  names: string[];
  bars: Bar[];
  /** The highest bar; 0 where nothing costs anything. */
  most: number;
  currency: string;
}

const OTHERS = "others";

/** Costs by day, stacked by a group: the dearest names, the rest as others. Undefined where currencies are mixed or nothing has a price. */
export function barsOf(rows: readonly UsageRow[], group: Group, shownNames: number): Bars | undefined {
  const currencies = new Set(rows.map((row) => row.currency).filter(Boolean));
  const [currency] = currencies;
  if (currencies.size !== 1 || currency === undefined || currency === "mixed") return undefined;
  const sums = new Map<string, number>();
  for (const row of rows) sums.set(shown(group, row[group]), (sums.get(shown(group, row[group])) ?? 0) + (row.cost ?? 0));
  const all = [...sums].sort(([a, n], [b, m]) => m - n || a.localeCompare(b)).map(([name]) => name);
  const names = all.length > shownNames ? [...all.slice(0, shownNames - 1), OTHERS] : all;
  const days = new Map<string, number[]>();
  for (const row of rows) {
    const at = shown("day", row.day);
    const parts = days.get(at) ?? names.map(() => 0);
    const place = names.indexOf(shown(group, row[group]));
    parts[place < 0 ? names.length - 1 : place]! += row.cost ?? 0;
    days.set(at, parts);
  }
  const bars = [...days].sort(([a], [b]) => a.localeCompare(b)).map(([at, parts]) => ({ day: at, parts }));
  return { names, bars, most: Math.max(0, ...bars.map(({ parts }) => parts.reduce((a, b) => a + b, 0))), currency };
}
