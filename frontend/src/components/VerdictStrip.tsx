import { Link } from "react-router";
import { levelTones, type Level } from "../pages/tenants/fleet";
import { verdictOf } from "../pages/tenants/standings";
import { useJudged } from "../pages/tenants/StandingsNow";
import { useOpenAlerts } from "./AlertBadge";
import { Badge } from "./Badge";

/** How everything stands, on every page: the worst pool and why, or that all is well. Always one line, so that nothing jumps. */
export function VerdictStrip() {
  const { heard, pools, outages } = useJudged();
  const { data } = useOpenAlerts();
  const verdict = heard ? verdictOf(pools, outages, data?.open ?? 0) : undefined;
  const level: Level | undefined = verdict?.level;
  return (
    <div data-testid="verdict" data-level={level} data-unknown={level === "unknown" || undefined} className="border-t border-line print:hidden">
      <div className="mx-auto flex h-7 max-w-[160rem] items-center gap-2 overflow-hidden px-4 text-2xs text-soft sm:px-6">
        {verdict && level ? (
          <>
            <Badge tone={levelTones[level]}>{level}</Badge>
            <span className="min-w-0 flex-1 truncate" title={verdict.text}>
              {verdict.text}
            </span>
            <Link className="link shrink-0" to={verdict.to}>
              {verdict.label}
            </Link>
          </>
        ) : !heard ? (
          <span>Reading how the pools stand</span>
        ) : null}
        <span className="sr-only" aria-live="polite">
          {level && `State: ${level}`}
        </span>
      </div>
    </div>
  );
}
