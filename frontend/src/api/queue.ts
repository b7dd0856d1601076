/** What waits and runs in a pool (telemetry/api/queue.py). */

import { get, send } from "./client";
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Part = Schemas["QueuePart"];
export type Waiting = Schemas["Waiting"];
export type Running = Schemas["Running"];
export type Preview = Schemas["Preview"];
export type Queue = Schemas["Queue"];

export const queueOf = (pool: string, signal: AbortSignal): Promise<Queue> => get(`pools/${encodeURIComponent(pool)}/queue`, {}, signal);
export const cancelRequest = (id: string): Promise<Schemas["Cancelled"]> => send("POST", `requests/${encodeURIComponent(id)}/cancel`);
export const pauseTenant = (tenant: string, reason: string): Promise<unknown> => send("POST", `tenants/${encodeURIComponent(tenant)}/pause`, { reason });
export const resumeTenant = (tenant: string): Promise<unknown> => send("POST", `tenants/${encodeURIComponent(tenant)}/resume`);
export const drainBackend = (backend: string, drain: boolean): Promise<unknown> => send("POST", `backends/${encodeURIComponent(backend)}/${drain ? "drain" : "undrain"}`);
