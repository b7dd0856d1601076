/** The query bar of requests: "waited:>8s tenant:acme at:08:40..08:55", to and from the filters of the API. Pure. */

import { REASONS } from "../../api/generated";
import type { Filters } from "../../api/requests";
import { zoneChoice } from "../../lib/zone";

/** Terms, with what stands after the colon. */
export const TERMS = {
  tenant: "a tenant",
  tier: "a tier",
  pool: "a pool",
  backend: "a backend",
  model: "a model, as the request named it",
  entitlement: "an entitlement",
  key: "a key, with or without qm-",
  user: "a user, as the requests or the key name it",
  outcome: "completed, refused, failed, cancelled",
  reason: "a reason",
  slo: "met, missed",
  waited: ">8s, <500ms",
  ttft: ">1s",
  total: ">30s",
  at: "08:40..08:55, today in the zone shown above; or two full times",
  id: "the beginning of an x-request-id",
} as const;
type Term = keyof typeof TERMS;

const PLAIN: Partial<Record<Term, keyof Filters>> = { tenant: "tenant", tier: "tier", pool: "pool", backend: "backend", model: "model", entitlement: "entitlement", user: "user", outcome: "outcome", reason: "reason", id: "request_id" };
const SPANS: readonly Term[] = ["waited", "ttft", "total"];
const UNITS: Record<string, number> = { ms: 0.001, s: 1, min: 60, m: 60, h: 3600, "": 1 };

export interface Parsed {
  filters: Partial<Filters>;
  /** What could not be read, in words. */
  faults: string[];
}

const clockAt = (text: string, day: Date): Date | undefined => {
  const match = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(text);
  if (match) {
    const at = new Date(day);
    const clock = [Number(match[1]), Number(match[2]), Number(match[3] ?? 0), 0] as const;
    if (zoneChoice === "utc") at.setUTCHours(...clock);
    else at.setHours(...clock);
    return at;
  }
  const at = new Date(text);
  return text.includes("T") && !Number.isNaN(at.getTime()) ? at : undefined;
};

function span(term: Term, value: string): Partial<Filters> | undefined {
  const match = /^([<>])\s*([\d.]+)\s*(ms|s|min|m|h|)$/.exec(value);
  const amount = Number(match?.[2]);
  if (!match || !Number.isFinite(amount)) return undefined;
  return { [`${term}_${match[1] === ">" ? "over" : "under"}`]: String(Number((amount * UNITS[match[3]!]!).toPrecision(12))) };
}

function moments(value: string, now: Date): Partial<Filters> | undefined {
  const [begin, end, ...more] = value.split("..");
  if (more.length > 0 || begin === undefined) return undefined;
  const from = clockAt(begin, now);
  const to = end === undefined ? from && new Date(from.getTime() + 60_000) : clockAt(end, now);
  if (!from || !to) return undefined;
  // A time of the evening that is typed after midnight is yesterday's.
  const back = from.getTime() > now.getTime() && !begin.includes("T") ? 86_400_000 : 0;
  if (to.getTime() <= from.getTime()) return undefined;
  return { from: new Date(from.getTime() - back).toISOString(), to: new Date(to.getTime() - back).toISOString() };
}

export function parse(text: string, now: Date): Parsed {
  const parsed: Parsed = { filters: {}, faults: [] };
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    const colon = word.indexOf(":");
    const term = word.slice(0, colon) as Term;
    const value = word.slice(colon + 1);
    if (colon < 0) {
      parsed.filters.request_id = word;
    } else if (!(term in TERMS)) {
      parsed.faults.push(`${term}: is not a term. Use ${Object.keys(TERMS).join(", ")}.`);
    } else if (value === "") {
      parsed.faults.push(`${term}: needs ${TERMS[term]}.`);
    } else {
      const plain = PLAIN[term];
      const found: Partial<Filters> | undefined =
        term === "key" ? { key_id: value.replace(/^qm-/, "").split(".")[0]! } : term === "slo" ? (value === "met" ? { slo_met: "true" } : value === "missed" ? { slo_met: "false" } : undefined) : term === "at" ? moments(value, now) : SPANS.includes(term) ? span(term, value) : plain && { [plain]: value };
      if (found) Object.assign(parsed.filters, found);
      else parsed.faults.push(`${word}: use ${TERMS[term]}.`);
    }
  }
  return parsed;
}

/** Filters as the query bar has them. */
export function written(filters: Partial<Filters>): string {
  const words: string[] = [];
  for (const [term, name] of Object.entries(PLAIN)) if (filters[name]) words.push(`${term}:${filters[name]}`);
  if (filters.key_id) words.push(`key:qm-${filters.key_id}`);
  if (filters.slo_met) words.push(`slo:${filters.slo_met === "true" ? "met" : "missed"}`);
  for (const term of SPANS) {
    const [over, under] = [filters[`${term}_over` as keyof Filters], filters[`${term}_under` as keyof Filters]];
    if (over) words.push(`${term}:>${over}s`);
    if (under) words.push(`${term}:<${under}s`);
  }
  if (filters.from && filters.to) words.push(`at:${filters.from}..${filters.to}`);
  return words.join(" ");
}

/** What may follow what is typed: terms, or values that are known for the last one. */
export function completions(text: string, known: Partial<Record<string, readonly string[]>>): string[] {
  const last = /\s$/.test(text) ? "" : (text.split(/\s+/).at(-1) ?? "");
  const before = text.slice(0, text.length - last.length);
  const colon = last.indexOf(":");
  if (colon < 0) return Object.keys(TERMS).filter((term) => term.startsWith(last)).map((term) => `${before}${term}:`);
  const term = last.slice(0, colon);
  const values = term === "outcome" ? Object.keys(REASONS) : term === "reason" ? Object.values(REASONS).flat() : term === "slo" ? ["met", "missed"] : (known[term] ?? []);
  return values.filter((value) => value.startsWith(last.slice(colon + 1))).map((value) => `${before}${term}:${value}`);
}
