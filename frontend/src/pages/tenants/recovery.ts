/** What is shown of a pool that swings around a threshold: worse at once, better once it has lasted. Pure. */

import { age } from "../../lib/format";
import { LEVELS, type Level, type PoolStanding, type Standing } from "./fleet";

/** So long without interruption a pool has to be better before that is shown [s]. */
export const RECOVERY_S = 10;

/** What was seen longer ago is not shown any more, however often the time since was interrupted [s]. */
const FORGET_S = 60;

/** Only from trouble does a pool recover. The other levels are kinds of good, or "unknown", which is shown as it comes and goes. */
const isTrouble = (level: Level): boolean => level === "failing" || level === "at risk";

const worse = (level: Level, than: Level): boolean => LEVELS.indexOf(level) < LEVELS.indexOf(than);

interface Seen extends Standing {
  /** When it was seen last [s]. */
  at: number;
  /** From when on all that was seen was better; undefined: the pool was unknown since. */
  better?: number;
}

export interface Watched {
  at: number;
  /** The thresholds by which was judged. */
  by: string;
  /** Of each pool the trouble that may still be shown, the worst first. */
  seen: ReadonlyMap<string, readonly Seen[]>;
  shown: readonly PoolStanding[];
}

export const NOTHING_SEEN: Watched = { at: 0, by: "", seen: new Map(), shown: [] };

function remembered(before: readonly Seen[], now: number, { level, why }: Standing): Seen[] {
  if (level === "unknown") return before.map(({ better: _, ...one }) => one);
  // What is no worse than the present is covered by it: it lasts longer.
  const left = before.filter((one) => worse(one.level, level)).map((one) => ({ ...one, better: one.better ?? now }));
  const kept = left.filter(({ at, better }) => now - better < RECOVERY_S && now - at < FORGET_S);
  return isTrouble(level) ? [...kept, { level, why, at: now }] : kept;
}

function shownOf(seen: readonly Seen[], now: number, standing: PoolStanding): PoolStanding {
  const worst = standing.level === "unknown" ? undefined : seen.find(({ level }) => worse(level, standing.level));
  return worst ? { ...standing, level: worst.level, was: { until: `${age(Math.max(1, now - worst.at))} ago`, why: worst.why } } : standing;
}

/** The next second: `present` is how each pool stands, `by` the thresholds by which. A page that did not look for longer
 * than a recovery takes, whose clock was set back, or that judges by other thresholds begins as if it had just been opened. */
export function watch(before: Watched, now: number, present: readonly PoolStanding[], by = ""): Watched {
  const continued = before.by === by && now >= before.at && now - before.at <= RECOVERY_S;
  const seen = new Map(
    present.flatMap((standing): [string, Seen[]][] => {
      const found = remembered((continued && before.seen.get(standing.pool)) || [], now, standing);
      return found.length > 0 ? [[standing.pool, found]] : [];
    }),
  );
  return { at: now, by, seen, shown: present.map((standing) => shownOf(seen.get(standing.pool) ?? [], now, standing)) };
}
