/** The strategic loop in words. Pure. */

import type { Trial, Tuning } from "../../api/operate";
import { age, compact } from "../../lib/format";

export const TUNES: Record<Tuning["mode"], string> = {
  off: "Tuning is off.",
  advise: "Proposes trials; an operator starts them.",
  automatic: "Starts trials of candidates that win their replay.",
};

/** "trial 3 as version 5: 2 min left, within its guard rails" */
export function canaryLine(trial: Trial, nowMs: number): string {
  const left = trial.canary_until ? (Date.parse(trial.canary_until) - nowMs) / 1000 : 0;
  const rails = trial.guard.stop ? (trial.guard.reason ?? "a guard rail was breached") : trial.guard.enough === false ? "too few requests to judge" : "within its guard rails";
  return `trial ${trial.id}${trial.version === null ? "" : ` as version ${trial.version}`}: ${left > 0 ? `${age(left)} left` : "ending"}, ${rails}`;
}

/** "trial 2, 5 min ago: it completed its interval within the guard rails" */
export function lastLine(trial: Trial, nowMs: number): string {
  const ended = trial.ended_at ?? trial.at;
  const why = trial.guard.reason || trial.gate.reason || trial.reason;
  return `trial ${trial.id}${trial.requests ? ` on ${compact(trial.requests)} requests` : ""}, ${age(Math.max(0, nowMs - Date.parse(ended)) / 1000)} ago${why ? `: ${why}` : ""}`;
}
