import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo, type ReactNode } from "react";
import { Link, useNavigate } from "react-router";
import { eventsOf, type Happened } from "../../api/events";
import type { Filters } from "../../api/requests";
import { Notices } from "../../components/Notices";
import { since } from "../../components/Outages";
import { Segmented } from "../../components/Segmented";
import { Table } from "../../components/Table";
import { useNow, useOutages } from "../../feed/live";
import { cutsPast } from "../../feed/outages";
import { clock, day, zone } from "../../lib/format";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { eventColumns, idOf } from "../events/columns";
import { Explore } from "../requests/Explore";
import { Failed, Waiting } from "../tenants/parts";
import { OverTimeCharts } from "./OverTimeCharts";
import { eventsAbout, RANGES, rangeOf, requestsOf, spanOf, zoomOf } from "./past";

export const NO_FILTERS: Filters = {
  tier: "", entitlement: "", key_id: "", user: "", backend: "", model: "", from: "", to: "", waited_over: "", waited_under: "", ttft_over: "", ttft_under: "", total_over: "", total_under: "",
  outcome: "", reason: "", pool: "", tenant: "", request_id: "", slo_met: "",
};
const EVENTS_MS = 15_000;
const LOOK = ["heat", "group"]; // what Explore keeps in the address itself

interface PastProps {
  /** What the requests of this object have in common. */
  filters: Partial<Filters>;
  /** Whose outages cut its past short; missing: of any pool. */
  pool?: string;
  /** Of which events: those of this pool, and of them those about this name. Missing: none are shown. */
  events?: { pool: string; subject?: string };
}

/** The past of an object: its requests summed up over a range, and what happened to it. */
export function Past({ filters, pool, events }: PastProps) {
  const [query, setQuery] = useAddress();
  const navigate = useNavigate();
  const now = useNow();
  const range = rangeOf(query.get("range"));
  const zoom = zoomOf(query);
  const { from, to } = zoom ?? spanOf(range, now * 1000);
  const missing = cutsPast(useOutages(), pool);
  const asked: Filters = { ...NO_FILTERS, ...filters, from, to };
  const shown = events !== undefined && user.role !== "member";
  const happened = useQuery({
    queryKey: ["events", "object", events?.pool, from, to],
    queryFn: ({ signal }) => eventsOf(events?.pool ?? "", Date.parse(from) / 1000, Date.parse(to) / 1000, signal),
    enabled: shown,
    placeholderData: keepPreviousData,
    refetchInterval: EVENTS_MS,
  });
  const look = (changes: Record<string, string>) =>
    setQuery((old) => {
      for (const [name, value] of Object.entries(changes)) {
        if (value) old.set(name, value);
        else old.delete(name);
      }
      return old;
    });
  const change = (changes: Record<string, string>) => {
    if (Object.keys(changes).every((name) => LOOK.includes(name))) look(changes);
    else void navigate(requestsOf({ ...asked, ...changes }));
  };
  const zoomed = (a: number, b: number) => look({ from: new Date(a * 1000).toISOString(), to: new Date(b * 1000).toISOString() });
  const reset = () => look({ from: "", to: "" });
  const found = happened.data?.events;
  const subject = events?.subject;
  const rows = useMemo(() => eventsAbout(found ?? [], subject), [found, subject]);
  return (
    <div className="space-y-4">
      <section aria-labelledby="past">
        <div className="mb-2 flex flex-wrap items-center gap-3">
          <h2 id="past" className="text-sm font-semibold">
            Requests
          </h2>
          <Segmented label="Time shown" value={zoom ? null : range} options={RANGES} onChange={(value) => look({ range: value, from: "", to: "" })} />
          {zoom && (
            <button type="button" className="button" onClick={reset}>
              {when(zoom.from)} to {when(zoom.to)}: reset
            </button>
          )}
          <Link className="link text-sm" to={requestsOf({ ...filters, from, to })}>
            Open in the explorer
          </Link>
        </div>
        {missing && (
          <p className="mb-2 text-sm text-warn" data-unknown>
            Requests that ended {since(missing)} are not in the ledger yet and are missing here.
          </p>
        )}
        <OverTimeCharts filters={asked} now={Math.floor(now / 10) * 10} until={missing?.since} events={shown ? rows : NOTHING} onZoom={zoomed} onReset={reset} />
        <div className="mt-3">
          <Explore filters={asked} onChange={change} onKnown={ignored} figures />
        </div>
      </section>
      {shown && (
        <section aria-labelledby="happened">
          <h2 id="happened" className="mb-2 text-sm font-semibold">
            Events
          </h2>
          {happened.error ? <Failed error={happened.error} retry={() => void happened.refetch()} /> : !happened.data ? <Waiting /> : <Table label="Events" rows={rows} columns={eventColumns(rows)} id={idOf} empty={missing ? `No known event; what happened ${since(missing)} may be missing.` : "Nothing happened to it in this time."} className="max-h-96" />}
          {happened.data && !happened.data.whole && <p className="mt-1 text-sm text-soft">Only the newest 300 events of this time were read. Choose a shorter time to see all.</p>}
        </section>
      )}
    </div>
  );
}

const ignored = () => undefined;
const NOTHING: readonly Happened[] = [];

function when(at: string): string {
  const s = Date.parse(at) / 1000;
  return `${day(s)} ${clock(s)} ${zone(s)}`;
}

export interface Fact {
  label: string;
  value: ReactNode;
  note?: string;
}

/** Figures of now, or what is configured, beside each other. */
export function Facts({ label, facts }: { label: string; facts: readonly Fact[] }) {
  return (
    <dl className="panel mb-4 grid grid-cols-2 gap-x-6 gap-y-3 px-4 py-3 sm:grid-cols-3 lg:grid-cols-5" aria-label={label}>
      {facts.map((fact) => (
        <div key={fact.label} className="min-w-0">
          <dt className="label">{fact.label}</dt>
          <dd className="font-semibold tracking-tight break-words">
            {fact.value}
            {fact.note && <span className="ml-1 text-xs font-normal text-faint">{fact.note}</span>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

interface Props extends PastProps {
  kind: string;
  name: string;
  list: { to: string; label: string };
  state?: ReactNode;
  intro?: ReactNode;
  actions?: ReactNode;
  children?: ReactNode;
}

/** One object: what it is, how it stands, and its past. */
export function ObjectPage({ kind, name, list, state, intro, actions, children, ...past }: Props) {
  return (
    <>
      <title>{`${name} · Quartermaster`}</title>
      <div className="mb-3 flex flex-wrap items-start justify-between gap-x-6 gap-y-2">
        <div className="min-w-0">
          <h1 className="flex flex-wrap items-center gap-x-2 gap-y-1 text-lg font-semibold tracking-tight break-all">
            <span className="font-normal text-soft">
              <Link to={list.to} className="hover:underline">
                {list.label}
              </Link>{" "}
              /
            </span>
            {name} {state}
          </h1>
          {intro && <p className="text-sm text-soft">{intro}</p>}
        </div>
        {actions && <div className="flex flex-wrap gap-2">{actions}</div>}
      </div>
      {children}
      <Past {...past} />
      <Notices />
    </>
  );
}
