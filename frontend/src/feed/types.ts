/** The live feed's shapes, as docs/reference/feed.md fixes them. A missing member is unknown or did not occur; there are no nulls. */

export interface Percentiles {
  p50?: number;
  p95?: number;
  p99?: number;
}

export interface InOut {
  input?: number;
  output?: number;
}

/** Ended requests of the window that had to meet an SLO. */
export interface SloFigures {
  attainment?: number; // 0..1: kept of all asked, refusals included
  attainment_served?: number; // 0..1: kept of those served
  asked?: number; // served, and refused with 429 or 503
  left?: number; // given up by their clients before anything was due, and so not judged
  violations?: number;
  total?: number;
  retries?: number; // of those asked, as their clients say
  retries_kept?: number;
  attainment_first?: number; // 0..1: kept of those asked that are no retries
}

export interface LatencyFigures {
  ttft_ms?: Percentiles;
  ttlt_ms?: Percentiles;
  tbt_ms?: Percentiles;
  queue_ms?: Percentiles;
}

export interface Rates {
  arrived?: number;
  completed?: number;
  refused?: number;
  failed?: number;
  cancelled?: number;
}

export type Counts = Record<string, number>;

export interface TenantFigures {
  waiting?: number;
  running?: number;
  concurrency?: number; // the limits of its entitlements in this pool, added up; missing: of an older leader
  tokens_per_s?: InOut;
  rates?: Rates;
  refusals?: Counts;
  latency?: LatencyFigures;
  slo?: SloFigures;
}

export interface EntitlementFigures extends LatencyFigures {
  tenant?: string;
  tier?: string;
  state?: string;
  waiting?: number;
  running?: number;
  concurrency?: number;
  paused?: boolean;
  kv_used?: number;
  served_per_s?: number;
  budget_tokens_per_s?: number;
  bucket_level?: number;
  bucket_gap?: number;
  class?: string;
  weight?: number;
  debt?: number;
  burst?: number;
  share?: number;
  tokens_per_s?: InOut;
  completed?: number;
  failed?: number;
  cancelled?: number;
  refused?: Counts;
  violations?: number;
  attainment?: number;
  attainment_served?: number;
  asked?: number;
  left?: number;
}

/** What a tier promises, and how that goes. */
export interface TierFigures extends SloFigures {
  ttft_s?: number;
  tbt_s?: number;
  ttlt_s?: number;
  latency?: LatencyFigures;
  tbt_why?: string; // why most answers miss tbt_s, where no replica keeps it; missing: one does, or it is not known
}

export interface BackendFigures {
  state?: string;
  why?: string;
  wake_fails?: boolean; // it is asleep, and was not woken when requests waited
  running?: number;
  slots?: number;
  engine_running?: number;
  engine_waiting?: number;
  kv_usage?: number;
  output_tokens_per_s?: number;
  input_tokens_per_s?: number;
  gpu_util?: number;
  gpu_mem_used_bytes?: number;
  gpu_mem_total_bytes?: number;
  /** What the engine says of itself, where it does. */
  engine_slots?: number;
  engine_kv_tokens?: number;
  engine_step_tokens?: number;
  engine_max_model_len?: number;
  /** What is in force, and what is less than was typed. */
  slots_in_force?: number;
  kv_tokens_in_force?: number;
  kv_offered?: number; // that may be reserved of them
  limits_why?: string;
  prefill_credit?: number; // 0: no bound
  credit_why?: string;
  /** Full steps take longer than an SLO's time between tokens, and what to change. */
  step_why?: string;
  token_ms?: number; // mean time between the tokens of an answer
  speed?: number; // 0 to 1 of the fastest replica of its pool
  speed_why?: string; // why it gets less work than others
  /** Coefficients [s] that its own log of steps says, with the error over steps they were not fitted to. */
  step_time?: { t0: number; a: number; b: number; c: number; e: number; knee: number; a2: number; error: number; recent_error?: number; steps: number; drifts: number; believed: boolean };
  steps_why?: string; // why the log is not read
  /** LoRA adapters, by the names that engines use. */
  adapters?: Record<string, AdapterState>;
  adapters_why?: string;
  foreign?: number; // requests in the engine that were not granted here
  observed_s?: number;
  /** When it was last seen, where it does not answer now. */
  unseen_since?: number;
  /** It serves all the same: its figures cannot be read, and tokens of it were seen. */
  generates?: boolean;
  /** Since when it serves nothing although nobody took it out of service, and the requests it lost since, by tenant. */
  down_since?: number;
  lost?: Counts;
}

export type AdapterState = "loaded" | "loading" | "missing" | "failed" | "unknown" | "unconfigured";

/** A source that the server cannot see. */
export interface Away {
  source: string; // redis | database | leader | rules
  since: number; // epoch seconds
  at_least?: boolean;
  pool?: string;
  refuses?: string; // of redis: it is there, and this is the code of the error it answers with
}

export interface Snapshot {
  pool: string;
  model?: string;
  seq: number;
  at: number; // epoch seconds
  window_s?: number;
  scope?: "all" | "own";
  policy?: string;
  leader?: string;
  epoch?: number;
  /** From a first token that is reported to the next prompt in its engine [ms]. */
  turnaround_ms?: number;
  prefill_bound?: boolean; // requests wait for prefill alone, on every replica; missing: they do not, or it is not known
  headroom?: number; // the last free slots, kept for baselines now; missing: none
  wakes_in_s?: number; // its replicas sleep: in how long one would serve
  /** Since when requests that ended are not stored, because the database takes no writes [epoch seconds]; missing: they are. */
  ledger_since?: number;
  /** Of the shared state: how often totals were written anew, entries that cannot be read, clock ahead of Redis', when data was lost. */
  state?: { rebuilt?: number; unread?: number; skew_s?: number; lost?: number };
  queue?: { depth?: number; oldest_s?: number; limit?: number; parts?: Counts };
  running?: number;
  slots?: number;
  kv_used?: number;
  kv_tokens?: number;
  tokens_per_s?: InOut;
  rates?: Rates;
  refusals?: Counts;
  latency?: LatencyFigures;
  slo?: SloFigures & { by_tier?: Record<string, TierFigures> };
  tenants?: Record<string, TenantFigures>;
  entitlements?: Record<string, EntitlementFigures>;
  backends?: Record<string, BackendFigures>;
  /** How many rows of a table are not in it: only the busiest are sent of hundreds. */
  left_out?: { tenants?: number; entitlements?: number };
  /** What the entitlements that were left out have in sum. */
  rest?: EntitlementPoint;
}

export interface TenantPoint {
  waiting?: number;
  running?: number;
  slots?: number;
  in?: number;
  out?: number;
  completed?: number;
  refused?: number;
  failed?: number;
  cancelled?: number;
  refusals?: Counts; // reason -> requests in the window
  ttft_p50?: number;
  ttft_p95?: number;
  ttft_p99?: number;
  ttlt_p50?: number;
  ttlt_p95?: number;
  ttlt_p99?: number;
  tbt_p50?: number;
  tbt_p95?: number;
  tbt_p99?: number;
  queue_p95?: number;
  attainment?: number;
  violations?: number;
}

/** An entitlement's share of the pool, and where it stands. What is 0 is missing. */
export interface EntitlementPoint {
  tenant?: string;
  running?: number;
  waiting?: number;
  tokens?: number; // per second, prompts and answers
  kv?: number; // tokens
  weight?: number;
  debt?: number;
  burst?: number;
}

export interface TierPoint {
  violations?: number;
  total?: number;
  ttft_p95?: number;
  tbt_p95?: number;
  ttlt_p95?: number;
  queue_p95?: number;
}

/** One moment of a pool's past: a second, or a longer step. */
export interface Point extends Omit<TenantPoint, "waiting"> {
  at: number;
  depth?: number;
  kv?: number; // 0..1
  kv_tokens?: number;
  arrived?: number;
  gpu?: number; // 0..1
  tenants?: Record<string, TenantPoint>;
  entitlements?: Record<string, EntitlementPoint>;
  /** What the entitlements had that have no row of their own here. */
  rest?: EntitlementPoint;
  tiers?: Record<string, TierPoint>;
  parts?: Record<string, { waiting?: number }>; // the policy's own queues
  backends?: Record<string, { gpu?: number; memory?: number }>;
}

export type ServerMessage =
  | { type: "hello"; role: string; heartbeat_s: number; at: number; pools: string[]; sources?: { away: Away[]; pools?: string[] }; histories?: boolean }
  | { type: "snapshot"; pool: string; seq: number; data: Snapshot }
  | { type: "history"; pool: string; frames: Point[] }
  | { type: "delta"; pool: string; seq: number; patch: Record<string, unknown> }
  | { type: "removed"; pool: string }
  | { type: "sources"; away: Away[]; pools?: string[] }
  | { type: "heartbeat"; at: number }
  | { type: "error"; code: string; message: string };
