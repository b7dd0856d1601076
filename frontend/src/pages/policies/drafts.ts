/** A draft of any change of a pool, as its form holds it. Pure. */

import type { Tried } from "../../api/operate";
import { instant } from "../../components/form/form";
import { moment, percent, text } from "../../lib/format";

export const waited = (s: number): string => `${s.toFixed(s < 10 ? 2 : 0)} s`;

/** A window of traffic as the server takes it; undefined: the latest, or one that is not complete. */
export function windowOf(choice: string, from: string, to: string, nowMs: number): { since: string; until: string } | undefined {
  if (choice === "") return undefined;
  if (choice !== "chosen") return { since: new Date(nowMs - Number(choice) * 3_600_000).toISOString(), until: new Date(nowMs).toISOString() };
  const [since, until] = [instant(from), instant(to)];
  return since && until ? { since, until } : undefined;
}

export interface Draft {
  policy: string;
  params: Record<string, string>;
  modifiers: string[];
}

/** A policy as the lab names it: "aging+edf:slack_s=2,x=1"; undefined: none. */
export function draftOf(text: string | null): Draft | undefined {
  if (!text) return undefined;
  const [names = "", values = ""] = text.split(/:(.*)/s);
  const modifiers = names.split("+");
  const policy = modifiers.pop()!;
  const params = Object.fromEntries(values.split(",").flatMap((pair) => (pair.includes("=") ? [pair.split(/=(.*)/s).slice(0, 2) as [string, string]] : [])));
  return { policy, params, modifiers };
}

/** Tokens or slots as somebody types them; null: automatic, undefined: no whole number. */
export const roomTyped = (text: string): number | null | undefined => (text.trim() === "" ? null : /^\d+$/.test(text.trim()) ? Number(text) : undefined);

/** One more value among those to try; a field that is named again is replaced. */
export function withValue(objects: readonly Tried[], kind: string, name: string, field: string, was: unknown, value: number): Tried[] {
  const old = objects.find((one) => one.kind === kind && one.name === name);
  const next: Tried = { kind, name, values: { ...old?.values, [field]: value }, was: { ...old?.was, [field]: was } };
  return [...objects.filter((one) => one !== old), next];
}

export function withoutValue(objects: readonly Tried[], kind: string, name: string, field: string): Tried[] {
  return objects.flatMap((one) => {
    if (one.kind !== kind || one.name !== name) return [one];
    const left = Object.entries(one.values).filter(([held]) => held !== field);
    return left.length ? [{ ...one, values: Object.fromEntries(left) }] : [];
  });
}

/** For how many minutes a trial lasts unless somebody says so. */
export const intervalOf = (settings: Record<string, number> | undefined): number => Math.max(1, Math.round((settings?.interval_s ?? 300) / 60));

/** The minutes of a trial as the server takes them; undefined: its own. */
export const startOf = (minutes: string): { minutes: number } | undefined => (Number(minutes) >= 1 ? { minutes: Number(minutes) } : undefined);

/** How much speaks for a tier being worse off; below zero it speaks against it. */
export const evidenceOf = (value: number): string => (value <= 0 ? "none" : value.toFixed(2));

/** When the replay of a proposed trial begins: it needs so many requests, and has so many. */
export function replayIn(traffic: { since: string; requests: number; needed: number } | null | undefined): string {
  if (!traffic) return "Its replay begins within seconds.";
  const since = moment(Date.parse(traffic.since) / 1000);
  if (traffic.requests >= traffic.needed) return `Its replay begins within seconds, on the requests since ${since}.`;
  return `Its replay needs ${traffic.needed} requests; ${traffic.requests} have ended since ${since}.`;
}

/** What stops a trial, with its numbers (scheduling/tuning/guard_rails.py). */
export function thresholds(settings: Record<string, number>): string[] {
  const say = (name: string, format: (value: number) => string) => (settings[name] === undefined ? "unknown" : format(settings[name]));
  return [
    `SLO attainment of a tier falls by ${say("drop", (value) => text(percent(value)))} or more, reported with ${say("alarm", (value) => text(percent(value)))} chance of a false alarm`,
    `p95 wait of a tier grows above ${say("wait_factor", String)} times what it was and above ${say("starvation_s", waited)}`,
    `a request waits longer than ${say("starvation", String)} times the p99 wait of before`,
    `there were no figures for a minute; it is not kept with fewer than ${say("least_canary", String)} requests`,
  ];
}
