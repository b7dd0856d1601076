/** The strategic loop in words. Pure. */

import type { Trial, Tuning } from "../../api/operate";
import { age, compact } from "../../lib/format";

export const TUNES: Record<Tuning["mode"], string> = {
  off: "Nobody tunes.",
  advise: "Proposes; a person starts trials.",
  automatic: "Winners of replays are put on trial by themselves.",
};

/** "trial 3 as version 5: 2 min left, guard rails hold" */
export function canaryLine(trial: Trial, nowMs: number): string {
  const left = trial.canary_until ? (Date.parse(trial.canary_until) - nowMs) / 1000 : 0;
  const rails = trial.guard.stop ? (trial.guard.reason ?? "guard rails say stop") : trial.guard.enough === false ? "too few requests yet to judge by" : "guard rails hold";
  return `trial ${trial.id}${trial.version === null ? "" : ` as version ${trial.version}`}: ${left > 0 ? `${age(left)} left` : "about to end"}, ${rails}`;
}

/** "trial 2, 5 min ago: it served its interval without a complaint" */
export function lastLine(trial: Trial, nowMs: number): string {
  const ended = trial.ended_at ?? trial.at;
  const why = trial.guard.reason || trial.gate.reason || trial.reason;
  return `trial ${trial.id}${trial.requests ? ` on ${compact(trial.requests)} requests` : ""}, ${age(Math.max(0, nowMs - Date.parse(ended)) / 1000)} ago${why ? `: ${why}` : ""}`;
}
