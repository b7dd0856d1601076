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
