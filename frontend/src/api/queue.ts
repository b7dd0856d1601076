/** What waits and runs in a pool (telemetry/api/queue.py). */

import { get, send } from "./client";

export interface Part {
  name: string;
  kind: "band" | "queue" | "bubble" | "relegated";
  waiting: number;
  low?: number;
  high?: number;
  score?: number;
}

export interface Waiting {
  id: string;
  place?: number; // among all that wait; for members among those of its entitlement
  tenant: string;
  entitlement: string;
  tier: string;
  class: string;
  arrival_s: number;
  expires_s?: number;
  deadline_s?: number;
  input_tokens: number;
  output_tokens: number;
  kv_tokens: number;
  priority?: number;
  attempt: number;
  start_s?: number;
  backend?: string;
  why?: string; // operators and admins only, like start_s
}

export interface Running {
  id: string;
  tenant: string;
  entitlement: string;
  tier: string;
  class: string;
  arrival_s: number;
  granted_s: number | null;
  input_tokens: number;
  output_tokens: number;
  output_bound: number;
  served: number;
  attempt: number;
  backend?: string;
  gateway?: string;
}

export interface Preview {
  at: number;
  policy: string;
  waiting?: number;
  parked?: number;
  occupation_s?: number;
  took_ms?: number;
  exact: boolean;
  parts?: Part[];
  requests: Waiting[];
}

export interface Queue {
  pool: string;
  at: number;
  preview: Preview | null;
  running: Running[];
}

export const queueOf = (pool: string, signal: AbortSignal): Promise<Queue> => get(`pools/${encodeURIComponent(pool)}/queue`, {}, signal);
export const cancelRequest = (id: string): Promise<{ was: string }> => send("POST", `requests/${encodeURIComponent(id)}/cancel`);
export const pauseTenant = (tenant: string, reason: string): Promise<unknown> => send("POST", `tenants/${encodeURIComponent(tenant)}/pause`, { reason });
export const resumeTenant = (tenant: string): Promise<unknown> => send("POST", `tenants/${encodeURIComponent(tenant)}/resume`);
export const drainBackend = (backend: string, drain: boolean): Promise<unknown> => send("POST", `backends/${encodeURIComponent(backend)}/${drain ? "drain" : "undrain"}`);
