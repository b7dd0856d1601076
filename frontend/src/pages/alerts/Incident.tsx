import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useParams } from "react-router";
import { ApiError, get } from "../../api/client";
import type { Incident as Answer } from "../../api/operate";
import { badgeOf } from "../../charts/marks";
import { Badge, type Tone } from "../../components/Badge";
import { Notices } from "../../components/Notices";
import { since, unknownSince } from "../../components/Outages";
import { Table, type Column } from "../../components/Table";
import { useOutages } from "../../feed/live";
import { cutsPast, hidesAlert } from "../../feed/outages";
import { age, clock, compact, inZone, moment, rate, utc, zone } from "../../lib/format";
import { NoSuch } from "../objects/NoSuch";
import { Question, type Asked } from "../queue/Actions";
import { Failed, Waiting, When } from "../tenants/parts";
import { Marks, Ways } from "./AlertParts";
import { lastedS, ONE_TIME, stateLabel } from "./rules";

const REFRESH_MS = 10_000;
const tones: Record<string, Tone> = { critical: "bad", warning: "warn" };

type Act = Answer["actions"][number];
type Hurt = Answer["effect"]["tenants"][number];

/** Where an action is done; undefined: by a question on this page, or nowhere in the console. */
export function whereOf(act: Pick<Act, "do" | "of">, span: { pool: string; from: string; to: string }): { to: string; label: string } | undefined {
  const of = encodeURIComponent(act.of);
  const of_moment = (more: Record<string, string>) => `/requests?${new URLSearchParams({ ...(span.pool ? { pool: span.pool } : {}), from: span.from, to: span.to, ...more })}`;
  switch (act.do) {
    case "backend":
      return { to: `/backends/${of}?${new URLSearchParams({ from: span.from, to: span.to })}`, label: "Open the backend" };
    case "scale":
    case "credit":
      return { to: `/pools?${new URLSearchParams({ what: "pool", edit: act.of })}`, label: "Open the pool" };
    case "queue":
      return { to: `/queue?pool=${of}`, label: "Open the queue" };
    case "policy":
      return { to: "/lab?new=1", label: "Open the lab" };
    case "entitlements":
      return { to: `/tenants/${of}`, label: "Open the tenant" };
    case "quotas":
      return { to: `/tenants/${of}/quotas`, label: "Open its quotas" };
    case "budgets":
      return { to: `/tenants/${of}/budgets`, label: "Open its budgets" };
    case "failed":
      return { to: of_moment({ outcome: "failed" }), label: "Show the requests" };
    case "refused":
      return { to: of_moment({ outcome: "refused" }), label: "Show the requests" };
    default:
      return undefined;
  }
}

const QUESTIONS: Record<string, { kind: Asked["kind"]; label: string }> = { pause: { kind: "pause", label: "Pause it" }, drain: { kind: "drain", label: "Drain it" } };

function Actions({ incident, onAsk }: { incident: Answer; onAsk: (asked: Asked) => void }) {
  const span = { pool: incident.alert.pool, from: incident.effect.from, to: incident.effect.to };
  if (incident.actions.length === 0) return <p className="text-sm text-soft">Nothing is proposed for an alert of this kind.</p>;
  return (
    <ul className="divide-y divide-line">
      {incident.actions.map((act) => {
        const where = whereOf(act, span);
        const question = QUESTIONS[act.do];
        return (
          <li key={act.do + act.of} className="flex flex-wrap items-center justify-between gap-3 py-2 text-sm">
            <span className="min-w-0 flex-1 basis-64">{act.text}</span>
            {question ? (
              <button type="button" className="button" onClick={() => onAsk({ kind: question.kind, name: act.of })}>
                {question.label}
              </button>
            ) : (
              where && (
                <Link className="button" to={where.to}>
                  {where.label}
                </Link>
              )
            )}
          </li>
        );
      })}
    </ul>
  );
}

const columns: Column<Hurt>[] = [
  { label: "Tenant", by: (row) => row.tenant, cell: (row) => <Link className="link" to={`/tenants/${row.tenant}`}>{row.tenant}</Link> },
  { label: "Asked", right: true, by: (row) => row.requests, cell: (row) => compact(row.requests) },
  { label: "Refused", right: true, by: (row) => row.refused, cell: (row) => compact(row.refused) },
  { label: "Failed", right: true, by: (row) => row.failed, cell: (row) => compact(row.failed) },
  { label: "Late", right: true, by: (row) => row.late, cell: (row) => compact(row.late) },
  { label: "Waited", right: true, by: (row) => row.waited, cell: (row) => compact(row.waited) },
];

/** "Of 412 requests 31 were refused, 4 failed and 60 were late." `whole`: the ledger has all that ended. */
export function harm(total: Answer["effect"]["total"], whole = true): string {
  if (total.requests === 0) return whole ? "No request that it concerns was received meanwhile." : "How many requests it concerns is unknown.";
  const parts = [total.refused && `${compact(total.refused)} ${total.refused === 1 ? "was" : "were"} refused`, total.failed && `${compact(total.failed)} failed`, total.late && `${compact(total.late)} ${total.late === 1 ? "was" : "were"} late`].filter(Boolean);
  const all = total.requests === 1 ? "One request was received" : `Of ${compact(total.requests)} requests`;
  if (parts.length === 0) return total.requests === 1 ? "One request was received and served in time." : `${all} none was refused, failed or late.`;
  if (total.requests === 1) return `${all}: ${parts.join(", ")}.`;
  return `${all} ${parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}` : parts[0]}.`;
}

/** One alert: what went before it, whom it hurt, and what can be done about it. */
export function Incident() {
  const { alert: number } = useParams();
  const [asked, setAsked] = useState<Asked | null>(null);
  const { data, error, refetch } = useQuery({
    queryKey: ["alerts", "incident", number],
    queryFn: ({ signal }) => get<Answer>(`alerts/${number}/incident`, {}, signal),
    refetchInterval: ({ state }) => (state.data?.alert.state === "open" ? REFRESH_MS : false),
  });
  const outages = useOutages();
  if (error instanceof ApiError && error.status === 404) return <NoSuch kind="alert" name={number ?? ""} list={{ to: "/alerts", label: "Alerts" }} />;
  if (error) return <Failed error={error} retry={() => void refetch()} />;
  if (!data) return <Waiting />;
  const { alert, effect } = data;
  const missing = cutsPast(outages, alert.pool);
  const unseen = alert.state === "open" ? hidesAlert(outages, alert.pool) : undefined;
  const opened = Date.parse(alert.at) / 1000;
  const began = Date.parse(effect.from) / 1000;
  const before = data.events.filter((event) => Date.parse(event.at) < Date.parse(effect.from) && event.kind !== "resolved");
  return (
    <div className="space-y-5">
      <title>{`Alert ${alert.id} · Quartermaster`}</title>
      <div>
        <p className="text-sm">
          <Link className="link" to="/alerts">
            Alerts
          </Link>{" "}
          <span className="text-faint">/ {alert.id}</span>
        </p>
        <h1 className="mt-1 flex flex-wrap items-center gap-2 text-lg font-semibold tracking-tight">
          <Badge tone={alert.state === "open" ? tones[alert.severity] : "plain"}>{alert.state === "open" ? alert.severity : stateLabel(alert.state)}</Badge>
          {alert.rule_name || alert.kind.replaceAll("_", " ")}
        </h1>
        <p className="mt-1 text-base">{inZone(alert.line)}</p>
        <p className="mt-1 text-sm text-soft">
          Since <time title={utc(began)}>{moment(began)}</time>, {alert.state === ONE_TIME ? "sent once" : `for ${age(lastedS(effect.from, alert.resolved_at, Date.now()))}`}
          {opened > began && `; the alert opened after ${age(opened - began)}`}
          {alert.resolution && `. Over: ${alert.resolution}`}
        </p>
        {unseen && (
          <p className="mt-1 text-sm text-warn" data-unknown>
            Whether it still holds is {unknownSince(unseen)}.
          </p>
        )}
        <Ways alert={alert} />
      </div>
      <div className="grid gap-5 lg:grid-cols-2">
        <section className="panel p-4" aria-labelledby="effect">
          <h2 id="effect" className="text-sm font-semibold">
            Effect
          </h2>
          <p className="mt-1 text-base" data-testid="harm">
            {harm(effect.total, !missing)}
          </p>
          <p className="mt-0.5 text-2xs text-faint">
            Requests under way between {clock(Date.parse(effect.from) / 1000)} and {clock(Date.parse(effect.to) / 1000)} {zone(began)}
            {!effect.whole && "; it lasted longer than is added up"}. Late: served, and missed its SLO.
          </p>
          {missing && (
            <p className="mt-1 text-sm text-warn" data-unknown>
              Requests that ended {since(missing)} are not counted yet.
            </p>
          )}
          {effect.tenants.length > 0 && (
            <div className="mt-2">
              <Table label="Effect by tenant" rows={effect.tenants} columns={columns} id={(row) => row.tenant} empty="" />
            </div>
          )}
          {effect.more_tenants > 0 && <p className="mt-1 text-sm text-soft">and {effect.more_tenants} more tenants</p>}
        </section>
        <section className="panel p-4" aria-labelledby="todo">
          <h2 id="todo" className="text-sm font-semibold">
            What to do
          </h2>
          <Actions incident={data} onAsk={setAsked} />
          <div className="mt-2 border-t border-line pt-2 text-sm text-soft">
            <Marks alert={alert} />
            {data.deliveries.map((sent) => (
              <p key={sent.channel}>
                {sent.delivered_at ? (
                  <>
                    Sent to {sent.channel}, <When at={sent.delivered_at} />
                    {sent.resolution_delivered_at && (
                      <>
                        ; its end <When at={sent.resolution_delivered_at} />
                      </>
                    )}
                  </>
                ) : (
                  `${sent.channel}: not sent yet`
                )}
                {sent.problem && (
                  <span className="block text-bad">
                    {sent.delivered_at ? "Its end could not be sent" : "It could not be sent"} to {sent.channel}: {sent.problem}
                  </span>
                )}
              </p>
            ))}
          </div>
        </section>
      </div>
      <section className="panel p-4" aria-labelledby="cause">
        <h2 id="cause" className="text-sm font-semibold">
          What went before
        </h2>
        {data.grown.length > 0 ? (
          <ul className="mt-1 text-sm">
            {data.grown.map((row) => (
              <li key={row.tenant}>
                <Link className="link" to={`/tenants/${row.tenant}`}>
                  {row.tenant}
                </Link>{" "}
                sent {rate(row.per_minute)} requests a minute in the five minutes before; {row.before === null ? "how many before that is unknown" : `${rate(row.before)} in the half hour before those`}; longest prompt {compact(row.longest_prompt)} tokens.
              </li>
            ))}
          </ul>
        ) : (
          <p className="mt-1 text-sm text-soft">{missing ? "Whether a tenant sent more than before is not known yet." : "No tenant sent more than half as much again as in the half hour before."}</p>
        )}
        {before.length === 0 && <p className="mt-1 text-sm text-soft">No event is recorded in the quarter of an hour before it{missing && `; events ${since(missing)} may be missing`}.</p>}
      </section>
      <section aria-labelledby="timeline" className="space-y-2">
        <h2 id="timeline" className="text-sm font-semibold">
          Timeline
        </h2>
        <ol className="panel divide-y divide-line" data-testid="timeline">
          {data.events.map((event) => {
            const at = Date.parse(event.at) / 1000;
            const own = event.subject === String(alert.id) && (event.kind === "alert" || event.kind === "resolved");
            return (
              <li key={`${event.at} ${event.kind} ${event.subject} ${event.line}`} className={`flex flex-wrap items-baseline gap-x-3 gap-y-0.5 px-3 py-1.5 text-sm ${own ? "bg-raised font-medium" : ""}`}>
                <time className="w-24 shrink-0 text-soft" title={utc(at)}>
                  {clock(at)}
                </time>
                <span className="w-20 shrink-0 text-right text-faint">{`${at < began ? "−" : "+"}${age(Math.abs(at - began))}`}</span>
                <span className="w-20 shrink-0">
                  <Badge tone={badgeOf(event)}>{event.kind}</Badge>
                </span>
                <span className="min-w-0 flex-1 basis-60">{inZone(event.line)}</span>
              </li>
            );
          })}
        </ol>
        {!data.whole && <p className="text-sm text-soft">Not all events are listed.</p>}
      </section>
      {asked && <Question asked={asked} onDone={() => { setAsked(null); void refetch(); }} onClose={() => setAsked(null)} />}
      <Notices />
    </div>
  );
}
