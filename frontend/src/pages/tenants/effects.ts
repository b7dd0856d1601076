/** What a change would do to a pool, in figures and sentences. Pure; the server did the arithmetic. */

import type { Amounts, ChangedEntitlement, Effects, PoolEffect, PoolPicture } from "../../api/catalog";
import { compact } from "../../lib/format";

const DIMENSIONS = [
  { key: "slots", label: "Slots", unit: "" },
  { key: "kv_tokens", label: "KV cache", unit: "tokens" },
  { key: "tokens_per_s", label: "Throughput", unit: "tok/s" },
] as const satisfies { key: keyof Amounts; label: string; unit: string }[];

export interface Bar {
  key: keyof Amounts;
  label: string;
  unit: string;
  /** What the pool has; undefined where it is not measured or bounded. */
  capacity: number | undefined;
  reserved: { before: number; after: number };
  promised: { before: number; after: number };
  /** More is reserved than there is. */
  over: boolean;
}

const of = (picture: PoolPicture | null, part: "capacity" | "reserved" | "promised", key: keyof Amounts): number | undefined => picture?.[part][key];

/** One bar per dimension that says something. */
export function bars(effect: PoolEffect): Bar[] {
  const now = effect.after ?? effect.before;
  return DIMENSIONS.flatMap(({ key, label, unit }) => {
    const capacity = of(now, "capacity", key);
    const both = (part: "reserved" | "promised") => ({ before: of(effect.before, part, key) ?? 0, after: of(effect.after, part, key) ?? 0 });
    const reserved = both("reserved");
    const promised = both("promised");
    if (capacity === undefined && !promised.before && !promised.after) return [];
    return [{ key, label, unit, capacity, reserved, promised, over: capacity !== undefined && reserved.after > capacity + 1e-9 }];
  });
}

/** Bytes of KV cache and such read "12.3k tokens". */
export const amount = (n: number, unit: string): string => (unit ? `${compact(n)} ${unit}` : compact(n));

/** "reserved 8 -> 20 of 32": what is shown beside a bar. */
export function said(bar: Bar): string {
  const { reserved, promised, capacity, unit } = bar;
  const part = reserved.before || reserved.after ? reserved : promised;
  const word = part === reserved ? "reserved" : "promised";
  const figures = part.before === part.after ? compact(part.after) : `${compact(part.before)} → ${compact(part.after)}`;
  return `${word} ${figures}${capacity === undefined ? "" : ` of ${compact(capacity)}`}${unit ? ` ${unit}` : ""}`;
}

type Mood = "good" | "warn" | "plain";

interface Finding {
  mood: Mood;
  text: string;
}

const works = (entitlement: ChangedEntitlement): string => (entitlement.service_class === "dedicated" || entitlement.service_class === "guaranteed" ? "It fits: its share is reserved at once." : entitlement.service_class === "elastic" ? "It takes effect at once: its share is met on average over time, not reserved." : "It takes effect at once: it uses capacity that others leave idle.");

function sentence(own: string | undefined, changed: ChangedEntitlement): Finding | null {
  const { entitlement: name, before, after } = changed;
  const mine = name === own;
  if (!after) return { mood: "plain", text: `${name} ends.` };
  if (before?.state === after.state && before.reason === after.reason) return null;
  const why = after.reason ? `: ${after.reason}` : "";
  switch (after.state) {
    case "bound":
      if (mine || !before) return { mood: "good", text: mine ? works(changed) : `${name} begins.` };
      return { mood: "good", text: `${name} fits again.` };
    case "degraded":
      return { mood: "warn", text: `${mine ? "It would be" : `${name} (${changed.tenant}) becomes`} degraded${why}.` };
    case "expired":
      return { mood: "warn", text: `${mine ? "It" : name} would be over${why}.` };
    default:
      return { mood: "warn", text: `${mine ? "It does not fit yet and stays pending" : `${name} (${changed.tenant}) becomes pending`}${why}.` };
  }
}

/** What a person should know before saving. `own` is the entitlement that the form is about. */
export function findings(effects: Effects, own?: string): Finding[] {
  const found: Finding[] = [];
  for (const pool of effects.pools) for (const changed of pool.entitlements) {
      const said = sentence(own, changed);
      if (said) found.push(said);
    }
  const keys = effects.changes.filter((change) => change.kind === "apikey" && change.action === "delete").length;
  if (keys) found.push({ mood: "warn", text: `${keys === 1 ? "One key is deleted" : `${keys} keys are deleted`} with it: new requests are refused, and those that wait or run end with an error.` });
  if (effects.pools.length && own && !found.some((f) => f.mood === "warn")) {
    const touched = effects.pools.some((pool) => pool.entitlements.some((changed) => changed.entitlement === own));
    if (!touched) found.push({ mood: "good", text: "It fits, and no other entitlement is affected." });
  }
  return found;
}

const OF_A_CONTRACT = ["entitlement", "tier", "slo"];
const NO_CONTRACT = ["description", "project"];

/** What becomes of requests that wait or run already. */
export function ofRequests({ changes }: Effects): string[] {
  const said = new Set<string>();
  for (const { action, kind, before, after } of changes) {
    if (kind === "backend" && action === "delete") said.add("Requests that run there are answered; it receives no new ones.");
    if (action !== "change") continue;
    const fields = Object.keys(after ?? {});
    if (OF_A_CONTRACT.includes(kind) && fields.some((field) => !NO_CONTRACT.includes(field))) said.add("Requests that wait or run already keep what they were admitted with.");
    if (kind === "backend" && fields.some((field) => field === "pool" || field === "url")) said.add("Requests that run there are answered, as long as that engine answers; new ones go to the new place.");
    if (kind === "backend" && Number(after?.slots) < Number(before?.slots)) said.add("Requests that run there are answered, also those beyond the new slots.");
  }
  return [...said];
}
