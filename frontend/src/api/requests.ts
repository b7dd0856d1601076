/** The ledger, as /api/v1/requests gives it. */

import { get } from "./client";
import type { Ahead } from "./neighbours";

export interface LedgerRow {
  request_id: string;
  pool: string;
  model: string;
  tenant: string;
  tier: string;
  entitlement: string;
  key_id: string;
  gateway?: string; // operators and admins only
  backend?: string;
  outcome: string;
  reason: string;
  status: number;
  streamed: boolean;
  attempts: number;
  policy: string;
  why: string;
  input_tokens_est: number;
  output_tokens_est: number;
  output_bound: number;
  category?: string;
  estimate_source?: string;
  output_tokens_p90?: number;
  output_rank?: number | null;
  input_tokens: number;
  output_tokens: number;
  received_at: string;
  queued_at: string | null;
  granted_at: string | null;
  first_token_at: string | null;
  done_at: string;
  ttft_slo_s: number | null;
  tbt_slo_s: number | null;
  ttlt_slo_s: number | null;
  slo_met: boolean | null;
  queue_ms: number | null;
  ttft_ms: number | null;
  total_ms: number | null;
}

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

export interface Page {
  next: string | null;
  searched_to: string | null; // the page ends here although it is not full: next goes on
  results: LedgerRow[];
}

export interface Filters {
  outcome: string;
  reason: string;
  pool: string;
  tenant: string;
  request_id: string;
  slo_met: string;
}

/** The closed list (scheduling/core/outcomes.py): each reason belongs to one outcome. */
export const REASONS: Record<string, readonly string[]> = {
  completed: ["stop", "length", "replayed"],
  refused: [
    "not_entitled",
    "tenant_paused",
    "unknown_model",
    "invalid_request",
    "too_large",
    "too_long",
    "slow_request",
    "concurrency",
    "token_budget",
    "kv_budget",
    "low_priority",
    "quota_exceeded",
    "duplicate",
    "already_done",
    "key_reused",
    "tenant_connections",
    "queue_full",
    "queue_timeout",
    "no_backend",
    "rebuilding",
    "state_unavailable",
    "shutting_down",
  ],
  failed: ["backend_error", "backend_lost", "backend_stalled", "gateway_lost", "evicted", "lease_lost", "deadline", "slow_reader", "internal"],
  cancelled: ["client_left", "operator", "key_revoked"],
};

const cursorOf = (next: string): string => new URL(next, location.href).searchParams.get("cursor") ?? "";

export async function requestsPage(filters: Filters, cursor: string, signal: AbortSignal): Promise<Page> {
  const page = await get<Page>("requests", { ...filters, cursor, limit: "50" }, signal);
  return { ...page, next: page.next && cursorOf(page.next) };
}

export const request = (id: string, signal: AbortSignal): Promise<Told> => get(`requests/${encodeURIComponent(id)}`, {}, signal);
