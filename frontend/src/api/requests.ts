/** The ledger, as /api/v1/requests gives it. */

import { get } from "./client";
import type { Ahead } from "./neighbours";
import type { components } from "./schema";

type Schemas = components["schemas"];

/** Gateway and backend are for operators and admins only. */
export type LedgerRow = Omit<Schemas["Request"], "gateway" | "backend"> & Partial<Pick<Schemas["Request"], "gateway" | "backend">>;

export interface Check {
  rule: string;
  state: "passed" | "failed" | "not_reached";
  value?: number | null;
  limit?: number | null;
  depth?: number;
  unit?: string;
  note?: string;
}

/** What is told of one request beside its row (telemetry/ledger/story.py). */
export interface Story {
  checks: Check[];
  weight: { weight?: number; debt: number; burst?: number; at: number; class?: string; factors?: { service_class: number; slo: number; burst: number; debt: number } } | null;
  positions: { at: string; place: number }[];
  ahead?: Ahead | null;
  cost: { amount: number; currency: string; slot_s: number; parts: Record<string, number> } | null;
}

/** A request that waits or runs. */
export interface Alive {
  state: "waiting" | "running";
  pool: string;
  tenant: string;
  entitlement: string;
  tier: string;
  arrival_s: number;
  granted_s: number | null;
  input_tokens: number;
  output_tokens: number;
  output_bound: number;
  served: number;
  backend?: string;
  gateway?: string;
}

export type Told = (LedgerRow & { story?: Story; alive?: undefined }) | { request_id: string; alive: Alive };

/** Where `searched_to` is set the page ends there although it is not full, and `next` goes on. */
export type Page = Pick<Schemas["PaginatedRequestList"], "next" | "searched_to"> & { results: LedgerRow[] };

export interface Filters {
  outcome: string;
  reason: string;
  pool: string;
  tenant: string;
  request_id: string;
  slo_met: string;
}

const cursorOf = (next: string): string => new URL(next, location.href).searchParams.get("cursor") ?? "";

export async function requestsPage(filters: Filters, cursor: string, signal: AbortSignal): Promise<Page> {
  const page = await get<Page>("requests", { ...filters, cursor, limit: "50" }, signal);
  return { ...page, next: page.next && cursorOf(page.next) };
}

export const request = (id: string, signal: AbortSignal): Promise<Told> => get(`requests/${encodeURIComponent(id)}`, {}, signal);
