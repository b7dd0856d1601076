/** A request's story beyond its row, in words. Pure. */

import type { Check, Story } from "../../api/requests";
import { compact, seconds, text, words } from "../../lib/format";

const names: Record<string, string> = {
  right: "Entitlement usable, tenant not paused",
  quota: "Quota of the day or month, and budget",
  pool: "Scheduler and a ready backend",
  limits: "Limits of its key and user",
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

const s = (value: number): string => text(seconds(value));

/** "It was asked to wait 3.00 s to 5.00 s. The next request of its key came after 0.4 s, too early; it was refused too." */
export function retryInWords(retry: NonNullable<Story["retry"]>): string {
  const asked = retry.told_s === null || retry.least_s === null || retry.most_s === null ? "Which wait was sent with the refusal is unknown: it was not recorded, or none was sent." : `It was asked to wait ${s(retry.least_s)} to ${s(retry.most_s)}.`;
  if (!retry.next) return `${asked} No later request of its key has ended since.`;
  const judged = retry.obeyed === true ? ", as asked" : retry.obeyed === false ? `, too early${retry.early > 1 ? ` as ${compact(retry.early)} requests of the key did` : ""}` : retry.told_s === null ? "" : ", within the spread of the header, so whether it waited long enough is unknown";
  const end = retry.next.outcome === "refused" ? `; it was refused too (${words(retry.next.reason)})` : `; it was ${retry.next.outcome}`;
  return `${asked} The next request of its key came after ${s(retry.next.after_s)}${judged}${end}.`;
}

/** Whether another tier would have waited clearly less: only then it belongs to the verdict. */
export function sooner(instead: NonNullable<Story["instead"]>, queueMs: number | null): boolean {
  const best = instead.tiers[0];
  const own = (queueMs ?? 0) / 1000;
  return best !== undefined && own >= 0.05 && best.waited_s < own * 0.9 && own - best.waited_s >= 0.05;
}

/** "With tier premium: about 400 ms instead of 8.00 s." */
export function insteadInWords(instead: NonNullable<Story["instead"]>, queueMs: number | null): string {
  const best = instead.tiers[0];
  if (!best) return "Unknown: too few requests of other tiers ran in that minute.";
  const own = queueMs === null ? undefined : queueMs / 1000;
  if (own === undefined) return `Requests of tier ${best.tier} waited about ${s(best.waited_s)} for a slot.`;
  if (own < 0.05) return "It did not wait for a slot, so no tier would have waited less.";
  if (!sooner(instead, queueMs)) return `No shorter wait: requests of tier ${best.tier} waited about ${s(best.waited_s)}, this one ${s(own)}.`;
  return `With tier ${best.tier}: a wait of about ${s(best.waited_s)} instead of ${s(own)}.`;
}
