/** The ledger, as /api/v1/requests gives it. */

import { get } from "./client";
import type { Ahead } from "./neighbours";
import type { components } from "./schema";

type Schemas = components["schemas"];

export type LedgerRow = Schemas["Request"];
export type Check = Schemas["StoryCheck"];
export type Story = Omit<Schemas["Story"], "ahead"> & { ahead: Ahead | null };
export type Alive = Schemas["Alive"];
/** One that ended with its story, or one that waits or runs. */
export type Told = (Omit<Schemas["RequestStory"], "story"> & { story: Story; alive?: undefined }) | Schemas["AliveRequest"];

/** Where `searched_to` is set the page ends there although it is not full, and `next` goes on. */
export type Page = Pick<Schemas["PaginatedRequestList"], "next" | "searched_to"> & { results: LedgerRow[] };

export type Explored = Schemas["Explored"];

/** As the API names them; empty: not asked for. */
export interface Filters {
  tier: string;
  entitlement: string;
  key_id: string;
  user: string;
  backend: string;
  model: string;
  from: string;
  to: string;
  waited_over: string;
  waited_under: string;
  ttft_over: string;
  ttft_under: string;
  total_over: string;
  total_under: string;
  outcome: string;
  reason: string;
  pool: string;
  tenant: string;
  request_id: string;
  slo_met: string;
}

const cursorOf = (next: string): string => new URL(next, location.href).searchParams.get("cursor") ?? "";

/** `order`: another one than the newest first; one page of the largest then. */
export async function requestsPage(filters: Filters, cursor: string, order: string, signal: AbortSignal): Promise<Page> {
  const page = await get<Page>("requests", { ...filters, cursor, order, limit: order ? "" : "50" }, signal);
  return { ...page, next: page.next && cursorOf(page.next) };
}

export type Tail = Schemas["Tail"];

/** What was stored since the place of an answer; the newest few without one. */
export const tailOf = (filters: Filters, place: string, signal: AbortSignal): Promise<Tail> => get("requests/tail", { ...filters, place }, signal);

/** `overTime`: with figures over the time that the filters name. */
export const explored = (filters: Filters, groupBy: string, heat: string, signal: AbortSignal, overTime = false): Promise<Explored> =>
  get("requests/explore", { ...filters, group_by: groupBy, heat, over_time: overTime ? "true" : "" }, signal);

/** The address of a file of what fits. */
export const fileOf = (filters: Filters, format: "csv" | "json"): string => `/api/v1/requests/export?${new URLSearchParams([...Object.entries(filters).filter(([, value]) => value !== ""), ["format", format]])}`;

export const request = (id: string, signal: AbortSignal): Promise<Told> => get(`requests/${encodeURIComponent(id)}`, {}, signal);
