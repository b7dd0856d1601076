/** The books, as /api/v1/ gives them (tenants/api/serializers.py). */

import { get, send, type Method } from "./client";

export interface Tenant {
  slug: string;
  description: string;
  created_at: string;
  paused_since: string | null;
  paused_reason: string;
}

export interface SloRow {
  slug: string;
  description: string;
  ttft_s: number | null;
  tbt_s: number | null;
  ttlt_s: number | null;
}

export interface Tier {
  slug: string;
  description: string;
  service_class: string;
  rank: number;
  weight: number;
  slo: string;
  over_limit: string;
  queue_limit: number;
  max_wait_s: number;
  max_grammar_bytes: number;
}

/** By dimension; one without a bound is missing. */
export interface Amounts {
  slots?: number;
  kv_tokens?: number;
  tokens_per_s?: number;
}

export interface Pool {
  slug: string;
  description: string;
  model: string;
  upstream_model: string;
  aliases: string[];
  policy: string;
  policy_version: number;
  max_model_len: number;
  slots: number;
  kv_tokens: number;
  scaling_mode: string;
  min_replicas: number;
  max_replicas: number;
  promised: Amounts | null;
  provisionable: Amounts | null;
}

export interface Backend {
  slug: string;
  description: string;
  pool: string;
  url: string;
  slots: number;
  kv_tokens: number;
  has_api_key: boolean;
  draining: boolean;
  dcgm_url: string;
  tokens_per_s: number;
  silent_since: string | null;
  managed: boolean;
  leaving_since: string | null;
}

export interface Entitlement {
  slug: string;
  description: string;
  tenant: string;
  pool: string;
  tier: string;
  tokens_per_s: number;
  burst_tokens: number;
  kv_tokens: number;
  concurrency: number;
  valid_from: string | null;
  valid_until: string | null;
  state: string;
  state_reason: string;
}

export interface Key {
  id: string;
  name: string;
  entitlement: string;
  tenant: string;
  status: "active" | "expired" | "revoked";
  created_at: string;
  created_by: string | null;
  expires_at: string | null;
  revoked_at: string | null;
}

export interface IssuedKey extends Key {
  key: string;
}

export interface Membership {
  id: number;
  user: string;
  tenant: string | null;
  role: string;
  created_at: string;
}

export interface Quota {
  id: number;
  tenant: string;
  period: string;
  soft_tokens: number | null;
  hard_tokens: number | null;
}

export interface Price {
  id: number;
  pool: string;
  valid_from: string;
  currency: string;
  per_million_input: string;
  per_million_output: string;
  per_gpu_second: string;
  slots_per_gpu: number;
}

export interface AuditEntry {
  id: number;
  at: string;
  actor: string;
  via: string;
  action: string;
  kind: string;
  object: string;
  tenant: string | null;
  before: Record<string, unknown> | null;
  after: Record<string, unknown> | null;
}

export interface List<T> {
  count: number;
  next: string | null;
  results: T[];
}

/** A list of the books; `limit` is the server's most. */
export const list = <T>(path: string, query: Record<string, string> = {}, signal?: AbortSignal): Promise<List<T>> => get(path, { limit: "1000", ...query }, signal);

export interface UsageRow {
  requests: number;
  completed: number;
  refused: number;
  failed: number;
  cancelled: number;
  input_tokens: number;
  output_tokens: number;
  slo_met: number;
  slo_total: number;
  slot_s: number;
  cost: number | null;
  currency: string;
  [group: string]: string | number | null;
}

export interface Usage {
  from: string;
  to: string;
  columns: string[];
  rows: UsageRow[];
}

/** What a change would do (tenants/preview.py). */
export interface PoolPicture {
  capacity: Amounts;
  answering: Amounts;
  reserved: Amounts;
  promised: Amounts;
  provisionable: Amounts | null;
}

export interface Verdict {
  state: string;
  reason: string;
}

export interface ChangedEntitlement {
  entitlement: string;
  tenant: string;
  tier: string;
  service_class: string;
  before: Verdict | null;
  after: Verdict | null;
}

export interface PoolEffect {
  pool: string;
  before: PoolPicture | null;
  after: PoolPicture | null;
  entitlements: ChangedEntitlement[];
}

export interface Effects {
  pools: PoolEffect[];
  changes: { action: string; kind: string; object: string; before: Record<string, unknown> | null; after: Record<string, unknown> | null }[];
}

export const attempt = (method: Method, path: string, body: unknown, signal?: AbortSignal): Promise<Effects> => send(method, path, body, { dry_run: "true" }, signal);

export interface EngineFound {
  reachable: boolean;
  ready: boolean;
  why: string;
  models: { id: string; max_model_len: number | null }[];
  kv_tokens: number | null;
  used_by: string | null;
}

export interface Made {
  pool?: Pool;
  backend?: Backend;
  tenant?: Tenant;
  entitlement?: Entitlement;
  key?: IssuedKey;
}
