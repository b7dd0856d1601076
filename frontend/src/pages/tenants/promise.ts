import type { Amounts, Pool } from "../../api/catalog";

/** What is promised of one dimension of a pool, what the pool has now, and what a planner may bring it to. */
export interface Share {
  given: number;
  now: number | undefined; // unknown: a replica was never measured
  most: number | undefined; // nobody plans, or nothing is known of a replica
}

export function promise(pool: Pick<Pool, "promised" | "provisionable" | "slots" | "kv_tokens">, dimension: keyof Amounts): Share {
  const there = { slots: pool.slots, kv_tokens: pool.kv_tokens, tokens_per_s: undefined };
  return { given: pool.promised?.[dimension] ?? 0, now: there[dimension], most: pool.provisionable?.[dimension] || undefined };
}
