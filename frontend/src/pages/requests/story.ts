/** A request's story beyond its row, in words. Pure. */

import type { Check, Story } from "../../api/requests";
import { compact, words } from "../../lib/format";

const names: Record<string, string> = {
  right: "Entitlement usable, tenant not paused",
  quota: "Quota of the day or month",
  pool: "Scheduler and a ready backend",
  concurrency: "Concurrency",
  token_budget: "Token budget",
  kv_budget: "KV cache share",
  weight: "Weight, while contended",
  slot: "A slot, or a place in the queue",
};

export const nameOf = (check: Check): string => names[check.rule] ?? words(check.rule);

/** "3 of 8 in flight before it" */
export function numbersOf(check: Check): string {
  const { value, limit, unit, note } = check;
  const parts: string[] = [];
  if (check.rule === "slot" && value !== undefined && value !== null) return `place ${compact(value)} in the queue`;
  if (value !== undefined && value !== null) parts.push(`${compact(value)}${limit === undefined || limit === null ? "" : ` of ${compact(limit)}`}${unit ? ` ${unit}` : ""}`);
  if (check.depth !== undefined) parts.push(`depth ${compact(check.depth)}`);
  if (note) parts.push(note);
  return parts.join("; ");
}

/** The four factors of the weight, in the order of the equation. */
export function factorsOf(weight: NonNullable<Story["weight"]>): [string, number][] {
  const { factors } = weight;
  if (!factors) return [];
  return [
    [`class ${weight.class ?? ""}`.trim(), factors.service_class],
    ["SLO", factors.slo],
    ["burst", factors.burst],
    ["debt", factors.debt],
  ];
}

export const product = (factors: readonly [string, number][]): number => factors.reduce((all, [, factor]) => all * factor, 1);

/** A grant's reason, one term a line: "due 1.70 s after arrival", "deadline 1.00 + work 0.70", "waited 2.3 s". */
export const termsOf = (why: string): string[] => why.split(/[;,:] /).map((term) => term.trim()).filter(Boolean);

const sources: Record<string, string> = {
  bound: "no prediction: every answer is expected to reach its bound",
  similar: "answers to similar prompts",
  application: "this application's past answers",
  category: "the category, corrected by drift",
};

export const sourceOf = (source: string): string => sources[source] ?? words(source);
