/** The catalog, as /api/v1/ gives them. */

import { get, send, type Method } from "./client";
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Tenant = Schemas["Tenant"];
export type SloRow = Schemas["Slo"];
export type Tier = Schemas["Tier"];
export type Pool = Schemas["Pool"];
/** By dimension; one without a bound is missing. */
export type Amounts = NonNullable<Pool["promised"]>;
export type Backend = Schemas["Backend"];
export type Adapter = Schemas["Adapter"];
export type Entitlement = Schemas["Entitlement"];
export type Project = Schemas["Project"];
export type Key = Schemas["Key"];
export type IssuedKey = Schemas["IssuedKey"];
export type Membership = Schemas["Membership"];
export type GroupRule = Schemas["GroupRule"];
export type Batch = Schemas["Batch"];
export type Person = Schemas["Person"];
export type SecondFactor = Schemas["SecondFactor"];
export type SecondFactorOffer = Schemas["SecondFactorOffer"];
export type Passkey = Schemas["Passkey"];
export type RecoveryCodes = Schemas["RecoveryCodes"];
export type Invitation = Schemas["Invitation"];
export type IssuedInvitation = Schemas["IssuedInvitation"];
export type BrowserSession = Schemas["Session"];
export type Token = Schemas["Token"];
export type IssuedToken = Schemas["IssuedToken"];
export type Quota = Schemas["Quota"];
export type Budget = Schemas["Budget"];
export type Spending = Schemas["Spending"];
export type Price = Schemas["Price"];
export type Owner = Schemas["Owner"];
export type AuditEntry = Schemas["Audit"] & { before: Record<string, unknown> | null; after: Record<string, unknown> | null };

export interface List<T> {
  count: number;
  next: string | null;
  results: T[];
}

const PAGE = 1000; // the server's most
export const MOST_ROWS = 10_000; // of a list that is sorted and searched in the page

/** A list of the catalog, all of it up to `MOST_ROWS`; with a `limit` so much of it. Where rows come or go while its pages are read, it is read again. */
export async function list<T>(path: string, query: Record<string, string> = {}, signal?: AbortSignal, tries = 3): Promise<List<T>> {
  const first = await get<List<T>>(path, { limit: String(PAGE), ...query }, signal);
  const end = Math.min(first.count, MOST_ROWS);
  if (query.limit !== undefined || first.results.length >= end) return first;
  const offsets = Array.from({ length: Math.ceil(end / PAGE) - 1 }, (_, i) => (i + 1) * PAGE);
  const others = await Promise.all(offsets.map((offset) => get<List<T>>(path, { limit: String(PAGE), offset: String(offset), ...query }, signal)));
  if (tries > 1 && others.some(({ count }) => count !== first.count)) return list(path, query, signal, tries - 1);
  return { ...first, results: [first, ...others].flatMap(({ results }) => results) };
}

/** Its groups' names stand beside the figures. */
export type UsageRow = Schemas["UsageRow"] & { [group: string]: string | number | null };
export type Usage = Omit<Schemas["Usage"], "rows"> & { rows: UsageRow[] };

/** What a change would do (tenants/preview.py). */
export interface PoolPicture {
  capacity: Amounts;
  answering: Amounts;
  reserved: Amounts;
  promised: Amounts;
  provisionable: Amounts | null;
}

export interface Verdict {
  state: string;
  reason: string;
}

export interface ChangedEntitlement {
  entitlement: string;
  tenant: string;
  tier: string;
  service_class: string;
  before: Verdict | null;
  after: Verdict | null;
}

export interface PoolEffect {
  pool: string;
  before: PoolPicture | null;
  after: PoolPicture | null;
  entitlements: ChangedEntitlement[];
}

export interface Effects {
  pools: PoolEffect[];
  changes: { action: string; kind: string; object: string; before: Record<string, unknown> | null; after: Record<string, unknown> | null }[];
}

export const attempt = (method: Method, path: string, body: unknown, signal?: AbortSignal): Promise<Effects> => send(method, path, body, { dry_run: "true" }, signal);

export type EngineFound = Schemas["EngineFound"];

export interface Made {
  pool?: Pool;
  backend?: Backend;
  tenant?: Tenant;
  entitlement?: Entitlement;
  key?: IssuedKey;
}
