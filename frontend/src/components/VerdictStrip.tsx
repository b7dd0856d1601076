import { useLayoutEffect, useRef, useState } from "react";
import { Link } from "react-router";
import { levelTones, type Level } from "../pages/tenants/fleet";
import { verdictOf, type Verdict } from "../pages/tenants/standings";
import { useJudged } from "../pages/tenants/StandingsNow";
import { useOpenAlerts } from "./AlertBadge";
import { Badge } from "./Badge";
import { Icon } from "./icons";

/** A sentence in one line, on a phone in two; what does not fit is shown once it is asked for. */
function Sentence({ text }: Pick<Verdict, "text">) {
  const line = useRef<HTMLSpanElement>(null);
  const [cut, setCut] = useState(false);
  const [whole, setWhole] = useState(false);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another text is cut or not at the same width
  useLayoutEffect(() => {
    const shown = line.current;
    if (!shown || whole) return;
    const measure = () => setCut(shown.scrollHeight > shown.clientHeight);
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(shown);
    return () => watch.disconnect();
  }, [text, whole]);
  return (
    <span className="relative flex min-w-0 flex-1 items-center gap-1" title={text}>
      <span ref={line} className={`min-w-0 wrap-anywhere ${whole ? "py-1" : "line-clamp-2 sm:line-clamp-1"}`}>
        {text}
      </span>
      {(cut || whole) && (
        <button
          type="button"
          className="flex size-6 shrink-0 items-center justify-center rounded text-faint after:absolute after:inset-0 hover:text-ink"
          aria-expanded={whole}
          aria-label={whole ? "Show less of the state" : "Show the whole state"}
          onClick={() => setWhole(!whole)}
        >
          <span className={whole ? "rotate-180" : ""}>
            <Icon name="down" />
          </span>
        </button>
      )}
    </span>
  );
}

/** How everything stands, on every page: the worst pool and why, or that all are healthy. As high whatever it says, so that
 * nothing jumps, until someone asks for all of it. */
export function VerdictStrip() {
  const { heard, pools, outages } = useJudged();
  const { data } = useOpenAlerts();
  const [named, setNamed] = useState<string>();
  const verdict = heard ? verdictOf(pools, outages, data?.open ?? 0, named) : undefined;
  if (verdict?.pool !== named) setNamed(verdict?.pool);
  const level: Level | undefined = verdict?.level;
  return (
    <div data-testid="verdict" data-level={level} data-unknown={level === "unknown" || undefined} className="border-t border-line print:hidden">
      <div className="mx-auto flex min-h-10 max-w-[160rem] items-center gap-2 px-4 py-0.5 text-2xs text-soft sm:min-h-7 sm:px-6">
        {verdict && level ? (
          <>
            <Badge tone={levelTones[level]}>{level}</Badge>
            <Sentence text={verdict.text} />
            <Link className="link shrink-0" to={verdict.to}>
              {verdict.label}
            </Link>
          </>
        ) : !heard ? (
          <span>Loading the state of the pools</span>
        ) : null}
        <span className="sr-only" aria-live="polite">
          {level && `State: ${level}`}
        </span>
      </div>
    </div>
  );
}
