/** What a lab run supposes beside its policies, as its form holds it. Pure. */

import type { LabRun, Tried } from "../../api/operate";
import { instant } from "../../components/form/form";
import { counted } from "../../lib/format";
import { zoneChoice } from "../../lib/zone";

type Asked = LabRun["asked"];
export type Newcomer = NonNullable<Asked["newcomers"]>[number];
export const LEAST_TIMES = 0.1;
export const MOST_TIMES = 10;

/** A number as somebody types it; null: nothing, undefined: not within bounds. */
export function between(text: string, least: number, most: number, whole = false): number | null | undefined {
  if (text.trim() === "") return null;
  const value = Number(text);
  return Number.isFinite(value) && value >= least && value <= most && (!whole || Number.isInteger(value)) ? value : undefined;
}

/** Yesterday from 14:00 to 16:00, as an <input type="datetime-local"> has it. */
export function yesterday(now: Date): [string, string] {
  const shown = zoneChoice === "utc" ? now.getTime() : now.getTime() - now.getTimezoneOffset() * 60_000;
  const day = new Date(shown - 86_400_000).toISOString().slice(0, 10);
  return [`${day}T14:00`, `${day}T16:00`];
}

/** What keeps a window from being recorded; empty: nothing. */
export function windowProblem(from: string, to: string): string {
  const [since, until] = [instant(from), instant(to)];
  if (!since || !until) return "Choose when it begins and ends.";
  if (until <= since) return "It ends before it begins.";
  return Date.parse(until) - Date.parse(since) > 31 * 86_400_000 ? "Choose 31 days at most." : "";
}

/** What keeps a new tenant from joining; empty: nothing. */
export function newcomerProblem(name: string, like: string, times: string, others: readonly string[]): string {
  if (!/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(name.trim())) return "A name has lower-case letters, digits and hyphens.";
  if (others.includes(name.trim())) return "There is one of that name.";
  if (!like) return "Choose whose share and requests it has.";
  return between(times, LEAST_TIMES, MOST_TIMES) === undefined ? `Requests: ${LEAST_TIMES} to ${MOST_TIMES} times theirs.` : "";
}

/** What a run supposes, one line for each thing; empty where it supposes nothing. */
export function supposed(asked: Asked): string[] {
  const { load, lost, newcomers, objects, replicas, slos } = asked;
  return [
    ...(load !== undefined && load !== 1 ? [`load × ${load}`] : []),
    ...(replicas ? [counted(replicas, "replica")] : []),
    ...(lost ?? []).map((name) => `without ${name}`),
    ...(newcomers ?? []).map(({ name, like, times }) => `new tenant ${name}, ${times} × ${like}`),
    ...(objects ?? []).flatMap(({ kind, name, values }) => Object.entries(values).map(([field, value]) => `${kind} ${name}: ${field} ${String(value)}`)),
    ...(slos ? [`SLOs of ${Object.keys(slos).join(", ")}`] : []),
  ];
}

/** Objects as the server takes them. */
export const triedOf = (objects: readonly Tried[]) => objects.map(({ kind, name, values }) => ({ kind, name, values }));

/** A policy as people read it. */
export const policyName = (policy: string): string => (policy === "now" ? "active policy" : policy === "unchanged" ? "as it was" : policy);
