/** What operators watch and decide: estimates, alerts, policy versions and trials (telemetry/api/). */

import type { Away } from "../feed/types";
import { get } from "./client";

export interface ErrorRow {
  name?: string;
  requests: number;
  actual: number;
  expected: number;
  mae: number;
  error: number;
  input_mae: number;
  coverage90: number;
}

export type Group = "category" | "tenant" | "model" | "source";

export interface Learned {
  predictor: string;
  learned?: number;
  prompts?: number;
  factors?: { scope: string; name: string; category: string; factor: number; observed: number }[];
  calibration?: { tenant: string; source: string; factor: number; observed: number }[];
}

export interface Estimates {
  from: string;
  to: string;
  overall: ErrorRow | null;
  by: Record<Group, ErrorRow[]>;
  calibration: { level: number; share: number }[];
  /** By pool; null while Redis does not answer. */
  pools: Record<string, Learned> | null;
}

export interface FactorLine {
  pool: string;
  scope: string;
  name: string;
  category: string;
  observed: number;
  points: [number, number][];
}

export interface EstimatesHistory {
  from: string;
  to: string;
  step: "minute" | "hour" | "day";
  points: { at: number; requests: number; ratio: number | null; mae: number; coverage90: number }[];
  factors: FactorLine[];
}

export interface AlertRow {
  id: number;
  at: string;
  kind: string;
  name: string;
  severity: "warning" | "critical";
  state: "open" | "resolved" | "told";
  rule: number | null;
  rule_name: string;
  subject: string;
  tenant: string;
  pool: string;
  line: string;
  value: number | null;
  threshold: number | null;
  resolved_at: string | null;
  resolution: string;
  delivered_at: string | null;
}

export interface AlertPage {
  next: string | null;
  results: AlertRow[];
}

export interface AlertRule {
  id: number;
  name: string;
  kind: string;
  threshold: number | null;
  clear_threshold: number | null;
  for_s: number;
  pool: string;
  tenant: string;
  severity: "warning" | "critical";
  webhook: string;
  enabled: boolean;
  open: number;
}

export interface OpenAlerts {
  open: number;
  critical: number;
  /** Pools whose rules nobody looks at, and since when. */
  unwatched: Away[];
}

export type Params = Record<string, unknown>;

export interface Version {
  number: number;
  parent: number | null;
  restores: number | null;
  at: string;
  author_kind: "person" | "optimiser";
  author: string;
  reason: string;
  policy: string;
  policy_params: Params;
  modifiers: Record<string, Params>;
  routing: string;
  routing_params: Params;
  partition: string;
  changes: Record<string, [unknown, unknown]>;
  serving: boolean;
}

export interface Trial {
  id: number;
  at: string;
  state: "proposed" | "rejected" | "canary" | "promoted" | "rolled_back" | "aborted";
  reason: string;
  study: string;
  number: number;
  base: number;
  version: number | null;
  values: Params;
  params: Params;
  window_from: string;
  window_until: string;
  requests: number;
  reward: number | null;
  parts: Partial<Record<"compactness" | "balance" | "queues" | "penalty", number>>;
  gate: { passed?: boolean; reason?: string; gain?: number; least_gain?: number; pairs?: [number, number][]; waits?: Record<string, [number, number]> };
  guard: { stop?: boolean; reason?: string; enough?: boolean; evidence?: Record<string, number>; limit?: number; waits?: Record<string, [number, number]>; attainment?: Record<string, [number, number]> };
  canary_at: string | null;
  canary_until: string | null;
  ended_at: string | null;
}

export interface Tuning {
  mode: "off" | "advise" | "automatic";
  settings: Record<string, number>;
  effective: Record<string, number>;
}

/** What the planner of replicas wants (pools/{slug}/scaling). */
export interface Scaling {
  mode: "off" | "advise" | "automatic";
  promised: { slots: number };
  state: { current: number; wanted: number; reason: string } | null;
}

export interface Trust {
  pool: string;
  minutes: number;
  trust: { requests: number; figures: Record<string, [number, number]>; worst: number; trusted: boolean } | null;
  calibrations: { at: string; error: number; requests: number }[];
}

export interface Lengths {
  pool: string;
  edges: number[];
  recent: number[];
  sample: number[];
  /** Of the serving policy: [lowest, highest] prompt length of each queue. */
  queues: [number, number][];
}

export interface PolicyInfo {
  name: string;
  kind: "ordering" | "modifier" | "routing";
  question: string;
  params: { name: string; type: string; default: unknown }[];
}

export interface Recording {
  id: number;
  name: string;
  pool: string;
  author: string;
  at: string;
  requests: number;
  span_s: number;
}

export interface Spread {
  mean: number;
  low: number;
  high: number;
}

export interface ResultRow extends Spread {
  policy: string;
  group: string;
  figure: string;
  variants: number;
  difference?: Spread & { sure: boolean };
}

export interface LabRun {
  id: number;
  name: string;
  recording: string;
  pool: string;
  author: string;
  at: string;
  asked: { policies: string[]; variants: number; replicas: number; slos: Record<string, Record<string, number>> | null };
  state: "queued" | "running" | "done" | "failed" | "cancelled";
  problem: string;
  total: number;
  done: number;
  finished_at: string | null;
  /** Of one just asked for: empty, or why it does not begin at once. */
  notice?: string;
  results?: ResultRow[];
}

export interface Listed<T> {
  count: number;
  results: T[];
}

/** Pages of a list are asked for by the address the server gave. */
export const following = <T>(next: string, signal?: AbortSignal): Promise<T> => {
  const { pathname, searchParams } = new URL(next, location.origin);
  return get<T>(pathname.replace(/^\/api\/v1\//, ""), Object.fromEntries(searchParams), signal);
};
