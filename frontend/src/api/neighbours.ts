/** Whom a request, or a tenant, waited for (telemetry/ledger/neighbours.py). Operators and admins. */

import { get } from "./client";

/** What was granted while a request waited, in hindsight. */
export interface Ahead {
  count: number;
  overtook: number;
  tenants: Record<string, number>;
  /** [ms after it was received, how many still went before it] */
  steps: [number, number][];
  last?: {
    request_id: string;
    tenant: string;
    tier: string;
    entitlement: string;
    received_at: string;
    granted_at: string;
    policy: string;
    why: string;
    input_tokens_est: number;
    output_tokens_est: number;
  };
}

export interface Holder {
  tenant: string;
  slot_s: number;
  share: number; // 0..1
  requests: number;
  overtook: number;
}

export interface PoolWaits {
  pool: string;
  requests: number;
  waited_s: number; // time in which at least one of them waited
  wait_p50_s: number;
  wait_p95_s: number;
  longest_s: number;
  held: Holder[];
  whole: boolean;
}

export interface Neighbours {
  tenant: string;
  minutes: number;
  received: number;
  refused: Record<string, number>;
  pools: PoolWaits[];
  live: boolean;
}

export const neighboursOf = (tenant: string, minutes: number, signal: AbortSignal): Promise<Neighbours> => get(`tenants/${encodeURIComponent(tenant)}/neighbours`, { minutes: String(minutes) }, signal);
