/** The question a usage table asks, and its answer as rows. Pure. */

import type { UsageRow } from "../../api/catalog";

export const GROUPS = ["tenant", "key", "user", "model", "pool", "entitlement", "tier", "hour", "day", "month", "outcome", "reason"] as const;
export type Group = (typeof GROUPS)[number];

export const RANGES = [
  { id: "24h", label: "24 h", hours: 24 },
  { id: "7d", label: "7 days", hours: 168 },
  { id: "30d", label: "30 days", hours: 720 },
  { id: "90d", label: "90 days", hours: 2160 },
] as const;

/** The time asked for; whole minutes, so that looking again within one asks the same question. */
export function span(range: string, now: number): { from: string; to: string } {
  const hours = RANGES.find((one) => one.id === range)?.hours ?? 24;
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
  input: number;
  output: number;
  met: number;
  judged: number;
  slot_s: number;
  /** Undefined where currencies are mixed. */
  cost: { sum: number; currency: string } | undefined;
}

export function totalOf(rows: readonly UsageRow[]): Total {
  const total: Total = { requests: 0, refused: 0, input: 0, output: 0, met: 0, judged: 0, slot_s: 0, cost: { sum: 0, currency: "" } };
  for (const row of rows) {
    total.requests += row.requests;
    total.refused += row.refused;
    total.input += row.input_tokens;
    total.output += row.output_tokens;
    total.met += row.slo_met;
    total.judged += row.slo_total;
    total.slot_s += row.slot_s;
    if (row.cost === null || (total.cost?.currency && row.currency && total.cost.currency !== row.currency)) total.cost = undefined;
    else if (total.cost) total.cost = { sum: total.cost.sum + row.cost, currency: total.cost.currency || row.currency };
  }
  return total;
}

/** A group's value as people read it: hours and days without the rest of the ISO text. */
export function shown(group: Group, value: string | number | null | undefined): string {
  const text = String(value ?? "");
  if (group === "hour") return text.slice(0, 16).replace("T", " ");
  if (group === "day") return text.slice(0, 10);
  if (group === "month") return text.slice(0, 7);
  return text || "–";
}
