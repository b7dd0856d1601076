/** What operators watch and decide: estimates, alerts, policy versions and trials (telemetry/api/). */

import type { Away } from "../feed/types";
import { get } from "./client";
import type { components } from "./schema";

type Schemas = components["schemas"];
/** JSON whose contents the schema leaves open. */
type Known<T, Contents> = Omit<T, keyof Contents> & Contents;

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

export type AlertRow = Schemas["Alert"];

export type AlertPage = Pick<Schemas["PaginatedAlertList"], "next" | "results">;

export type AlertRule = Schemas["Rule"];

export interface OpenAlerts {
  open: number;
  critical: number;
  /** Pools whose rules nobody looks at, and since when. */
  unwatched: Away[];
}

export type Params = Record<string, unknown>;

export type Version = Known<
  Schemas["Version"],
  { modifiers: Record<string, Params>; changes: Record<string, [unknown, unknown]> }
>;

export type Trial = Known<
  Schemas["Trial"],
  {
    parts: Partial<Record<"compactness" | "balance" | "queues" | "penalty", number>>;
    gate: { passed?: boolean; reason?: string; gain?: number; least_gain?: number; pairs?: [number, number][]; waits?: Record<string, [number, number]> };
    guard: { stop?: boolean; reason?: string; enough?: boolean; evidence?: Record<string, number>; limit?: number; waits?: Record<string, [number, number]>; attainment?: Record<string, [number, number]> };
  }
>;

export type Tuning = Known<Schemas["Tuning"], { settings: Record<string, number> }>;

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

export type Lengths = Known<Schemas["Lengths"], { queues: [number, number][] }>;

export type PolicyInfo = Schemas["PolicyInfo"];

export type Recording = Schemas["Recording"];

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

export type LabRun = Known<
  Schemas["Run"],
  { asked: { policies: string[]; variants: number; replicas: number; slos: Record<string, Record<string, number>> | null } }
> & {
  /** Of one just asked for: empty, or why it does not begin at once. */
  notice?: Schemas["Accepted"]["notice"];
  results?: ResultRow[];
};

export interface Listed<T> {
  count: number;
  results: T[];
}

/** Pages of a list are asked for by the address the server gave. */
export const following = <T>(next: string, signal?: AbortSignal): Promise<T> => {
  const { pathname, searchParams } = new URL(next, location.origin);
  return get<T>(pathname.replace(/^\/api\/v1\//, ""), Object.fromEntries(searchParams), signal);
};
