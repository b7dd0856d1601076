/** What operators watch and decide: estimates, alerts, policy versions and trials (telemetry/api/). */

import type { Away } from "../feed/types";
import { get } from "./client";
import type { components } from "./schema";

type Schemas = components["schemas"];
/** JSON whose contents the schema leaves open. */
type Known<T, Contents> = Omit<T, keyof Contents> & Contents;

export type ErrorRow = Schemas["Errors"];
export type Estimates = Schemas["Estimates"];
export type Group = keyof Estimates["by"];
export type Learned = Schemas["Learned"];
/** Points are [epoch s, factor]. */
export type FactorLine = Known<Schemas["FactorLine"], { points: [number, number][] }>;
export type EstimatesHistory = Known<Schemas["EstimatesHistory"], { factors: FactorLine[] }>;

export type AlertRow = Schemas["Alert"];

export type AlertPage = Pick<Schemas["PaginatedAlertList"], "next" | "results">;

export type AlertRule = Schemas["Rule"];

/** ``unwatched``: pools whose rules are not evaluated, and since when. */
export type OpenAlerts = Known<Schemas["OpenAlerts"], { unwatched: Away[] }>;

export type Channel = Schemas["Channel"];
export type Incident = Schemas["Incident"];
export type Rehearsal = Schemas["Rehearsal"];

export type Params = Record<string, unknown>;

export type Version = Known<
  Schemas["Version"],
  { modifiers: Record<string, Params>; room: Record<string, number | null> | null; changes: Record<string, [unknown, unknown]> }
>;

export type Trial = Known<
  Schemas["Trial"],
  {
    /** Attainment and tail, of all and (attainment.<tier>) of each tier; of trials of older releases the parts of another reward. */
    parts: Record<string, number>;
    setting: Setting | null;
    gate: { passed?: boolean; reason?: string; gain?: number; least_gain?: number; pairs?: [number, number][]; waits?: Record<string, [number, number]>; hurts?: boolean; attainment?: Record<string, [number, number]> };
    guard: { stop?: boolean; reason?: string; enough?: boolean; evidence?: Record<string, number>; limit?: number; waits?: Record<string, [number, number]>; attainment?: Record<string, [number, number]> };
  }
>;

/** A whole setting of a pool, as a policy version keeps it. */
export interface Setting {
  policy: string;
  policy_params: Params;
  modifiers: Record<string, Params>;
  routing: string;
  routing_params: Params;
  room?: Record<string, number | null>;
  objects?: Tried[];
}

/** Another object than the pool that a trial changes; `was`: before it. */
export interface Tried {
  kind: string;
  name: string;
  values: Params;
  was: Params;
}

export type Study = Schemas["Study"];
export type Tuning = Known<Schemas["Tuning"], { settings: Record<string, number> }>;

export type Scaling = Schemas["Scaling"];
/** Figures are [live, simulated]. */
export type Trust = Known<Schemas["Trust"], { trust: Known<Schemas["TrustFigures"], { figures: Record<string, [number, number]> }> | null }>;

export type Lengths = Known<Schemas["Lengths"], { queues: [number, number][] }>;

export type PolicyInfo = Schemas["PolicyInfo"];

export type Recording = Schemas["Recording"];

export type Spread = Pick<Schemas["Result"], "mean" | "low" | "high">;
export type ResultRow = Schemas["Result"];

/** A run as lists have it; `notice` of one just asked for, `results` and `trust` where one alone is read. */
export type LabRun = Schemas["Run"] & Partial<Pick<Schemas["Accepted"], "notice"> & Pick<Schemas["RunResults"], "results" | "trust">>;

export interface Listed<T> {
  count: number;
  results: T[];
}

/** Pages of a list are asked for by the address the server gave. */
export const following = <T>(next: string, signal?: AbortSignal): Promise<T> => {
  const { pathname, searchParams } = new URL(next, location.origin);
  return get<T>(pathname.replace(/^\/api\/v1\//, ""), Object.fromEntries(searchParams), signal);
};
