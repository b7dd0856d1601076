/** Whom a request, or a tenant, waited for (telemetry/ledger/neighbours.py). Operators and admins. */

import { get } from "./client";
import type { components } from "./schema";

type Schemas = components["schemas"];

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

export type Holder = Schemas["Holder"];
export type PoolWaits = Schemas["PoolWaits"];
export type Neighbours = Schemas["Neighbours"];

export const neighboursOf = (tenant: string, minutes: number, signal: AbortSignal): Promise<Neighbours> => get(`tenants/${encodeURIComponent(tenant)}/neighbours`, { minutes: String(minutes) }, signal);
