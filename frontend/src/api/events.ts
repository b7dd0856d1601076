import { get } from "./client";
import type { components } from "./schema";

export type Events = components["schemas"]["Events"];
export type Happened = Events["events"][number];

/** What happened in [from, to] (epoch seconds), newest first: of one pool, and what belongs to none. */
export const eventsOf = (pool: string, from: number, to: number, signal?: AbortSignal): Promise<Events> =>
  get<Events>("events", { pool, from: new Date(from * 1000).toISOString(), to: new Date(to * 1000).toISOString() }, signal);
