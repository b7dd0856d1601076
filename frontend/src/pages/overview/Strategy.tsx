import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Link } from "react-router";
import { get } from "../../api/client";
import type { Listed, Scaling, Trial, Tuning, Version } from "../../api/operate";
import { Badge, type Tone } from "../../components/Badge";
import { NowBadge } from "../../components/Outages";
import { age, compact, words } from "../../lib/format";
import { canaryLine, lastLine, TUNES } from "./strategy";

const EVERY_MS = 10_000;
const tones: Record<Trial["state"], Tone> = { proposed: "plain", rejected: "plain", canary: "warn", promoted: "good", rolled_back: "bad", aborted: "bad" };

function Cell({ label, badge, children }: { label: string; badge?: ReactNode; children: ReactNode }) {
  return (
    <div className="min-w-0">
      <dt className="label flex items-center gap-1.5">
        {label} {badge}
      </dt>
      <dd className="mt-0.5 text-sm text-soft">{children}</dd>
    </div>
  );
}

/** What the slow loop does: which policy serves since when, what is on trial, whether anybody tunes, how many replicas are wanted. */
export function Strategy({ pool }: { pool: string }) {
  const often = { refetchInterval: EVERY_MS, staleTime: 5000 };
  const versions = useQuery({ queryKey: ["tuning", "versions", pool], queryFn: ({ signal }) => get<Listed<Version>>(`pools/${pool}/versions`, {}, signal), ...often });
  const tuning = useQuery({ queryKey: ["tuning", "mode", pool], queryFn: ({ signal }) => get<Tuning>(`pools/${pool}/tuning`, {}, signal), ...often });
  const trials = useQuery({ queryKey: ["tuning", "trials", pool, "last"], queryFn: ({ signal }) => get<Listed<Trial>>(`pools/${pool}/trials`, { limit: "20" }, signal), ...often });
  const scaling = useQuery({ queryKey: ["scaling", pool], queryFn: ({ signal }) => get<Scaling>(`pools/${pool}/scaling`, {}, signal), ...often });
  const failed = versions.error ?? tuning.error ?? trials.error ?? scaling.error;
  const now = Date.now();
  const serving = versions.data?.results.find((row) => row.serving);
  const rows = trials.data?.results ?? [];
  const canary = rows.find((row) => row.state === "canary");
  const last = rows.find((row) => row.state !== "canary");
  const mode = tuning.data?.mode;
  const plan = scaling.data;
  const to = `/policies?pool=${encodeURIComponent(pool)}`;
  return (
    <section aria-labelledby="strategy-title" data-testid="strategy">
      <h2 id="strategy-title" className="mb-2 text-sm font-semibold">
        Strategic loop{" "}
        <Link className="link ml-1 text-xs font-normal" to={to}>
          policies and trials
        </Link>
      </h2>
      {failed ? (
        <p className="panel p-3 text-sm text-soft">{failed.message}</p>
      ) : (
        <dl className="panel grid grid-cols-1 gap-x-6 gap-y-3 px-3 py-2.5 sm:grid-cols-2 xl:grid-cols-4">
          <Cell label="Active">
            {serving ? (
              <>
                <span className="font-medium text-ink">
                  {serving.policy}@{serving.number}
                </span>
                {serving.at && `, for ${age((now - Date.parse(serving.at)) / 1000)}`}
                {serving.author && ` by ${serving.author}`}
                {serving.reason && `: ${serving.reason}`}
              </>
            ) : versions.data ? (
              "the policy the pool was created with"
            ) : (
              "…"
            )}
          </Cell>
          <Cell label="Canary" badge={canary && <Badge tone={canary.guard.stop ? "bad" : "warn"}>canary</Badge>}>
            {canary ? (
              <Link className="link" to={`${to}&trial=${canary.id}`}>
                {canaryLine(canary, now)}
              </Link>
            ) : trials.data ? (
              "none"
            ) : (
              "…"
            )}
          </Cell>
          <Cell label="Tuning" badge={mode && <NowBadge tone={mode === "automatic" ? "good" : "plain"}>{mode}</NowBadge>}>
            {mode ? TUNES[mode] : "…"}
            {last && (
              <>
                {" "}
                Last: <Badge tone={tones[last.state]}>{words(last.state)}</Badge> {lastLine(last, now)}
              </>
            )}
          </Cell>
          <Cell label="Replicas" badge={plan && <NowBadge tone={plan.mode === "automatic" ? "good" : "plain"}>{plan.mode}</NowBadge>}>
            {!plan ? "…" : plan.mode === "off" ? `Scaling is off.${plan.promised.slots === undefined ? "" : ` ${compact(plan.promised.slots)} slots are reserved.`}` : plan.state ? `${plan.state.current} running, ${plan.state.wanted} wanted: ${plan.state.reason}` : "The planner has not run yet."}
          </Cell>
        </dl>
      )}
    </section>
  );
}
