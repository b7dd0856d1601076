/** Whom a request, or a tenant, waited for (telemetry/ledger/neighbours.py). Operators and admins. */

import { get } from "./client";
import type { components } from "./schema";

type Schemas = components["schemas"];

/** `steps`: [ms after it was received, how many still went before it]. */
export type Ahead = Omit<Schemas["Ahead"], "steps"> & { steps: [number, number][] };
export type Holder = Schemas["Holder"];
export type PoolWaits = Schemas["PoolWaits"];
export type Neighbours = Schemas["Neighbours"];

export const neighboursOf = (tenant: string, minutes: number, signal: AbortSignal): Promise<Neighbours> => get(`tenants/${encodeURIComponent(tenant)}/neighbours`, { minutes: String(minutes) }, signal);
