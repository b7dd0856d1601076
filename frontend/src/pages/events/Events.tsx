import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { eventsOf, type Happened } from "../../api/events";
import { badgeOf } from "../../charts/marks";
import { Badge } from "../../components/Badge";
import { since } from "../../components/Outages";
import { Segmented } from "../../components/Segmented";
import { Table, type Column } from "../../components/Table";
import { useNow, useOutages } from "../../feed/live";
import { cutsPast } from "../../feed/outages";
import { inZone, moment, utc } from "../../lib/format";
import { useAddress } from "../../lib/useAddress";
import { Failed, Waiting } from "../tenants/parts";

const REFRESH_MS = 10_000;
const AROUND_S = 900;
const SPANS = [
  { value: "1", label: "1 h" },
  { value: "24", label: "24 h" },
  { value: "168", label: "7 d" },
] as const;

const columns: Column<Happened>[] = [
  { label: "Time", className: "whitespace-nowrap", cell: (row) => <time title={utc(Date.parse(row.at) / 1000)}>{moment(Date.parse(row.at) / 1000)}</time> },
  { label: "Kind", cell: (row) => <Badge tone={badgeOf(row)}>{row.kind}</Badge> },
  { label: "Event", className: "min-w-72", cell: (row) => inZone(row.line) },
  { label: "Pool", className: "whitespace-nowrap", cell: (row) => row.pool || "–" },
  { label: "By", cell: (row) => row.actor || "–" },
  {
    label: "That moment",
    className: "whitespace-nowrap",
    cell: (row) => {
      const at = Date.parse(row.at) / 1000;
      const where: Record<string, string> = row.pool ? { pool: row.pool } : {};
      return (
        <>
          <Link className="link" to={`/?${new URLSearchParams({ ...where, at: String(Math.round(at + 120)), window: "5" })}`}>
            charts
          </Link>
          {" · "}
          <Link className="link" to={`/requests?${new URLSearchParams({ ...where, from: new Date((at - 60) * 1000).toISOString(), to: new Date((at + 60) * 1000).toISOString() })}`}>
            requests
          </Link>
        </>
      );
    },
  },
];

/** One stream of what happened: cause and effect beside each other. */
export function Events() {
  const [query, setQuery] = useAddress();
  const now = useNow();
  const at = Number(query.get("at"));
  const pool = query.get("pool") ?? "";
  const hours = SPANS.find(({ value }) => value === query.get("hours"))?.value ?? "24";
  const to = at > 0 ? at + AROUND_S : Math.ceil(now / 10) * 10;
  const from = at > 0 ? at - AROUND_S : to - Number(hours) * 3600;
  const { data, error, refetch } = useQuery({
    queryKey: ["events", "page", pool, at || hours, at ? at : Math.floor(to / 10)],
    queryFn: ({ signal }) => eventsOf(pool, from, to, signal),
    placeholderData: keepPreviousData,
    refetchInterval: at ? false : REFRESH_MS,
  });
  const missing = cutsPast(useOutages(), pool);
  const set = (changes: Record<string, string>) =>
    setQuery((old) => {
      for (const [name, value] of Object.entries(changes)) {
        if (value) old.set(name, value);
        else old.delete(name);
      }
      return old;
    });
  return (
    <div className="space-y-3">
      <title>Events · Quartermaster</title>
      <div className="flex flex-wrap items-end justify-between gap-3">
        <div>
          <h1 className="text-lg font-semibold tracking-tight">Events</h1>
          <p className="text-sm text-soft">
            Leaders, replicas, policies, trials, alerts, scaling and changes by users{pool && `, pool ${pool}`}.{missing && ` What happened ${since(missing)} may be missing.`}
          </p>
        </div>
        <Segmented label="Time shown" value={at > 0 ? null : hours} options={SPANS} onChange={(value) => set({ hours: value, at: "" })} />
      </div>
      {at > 0 && (
        <p className="flex flex-wrap items-center gap-x-3 gap-y-1 rounded-md bg-warn-bg px-3 py-1.5 text-sm text-warn">
          From a quarter of an hour before to a quarter of an hour after {moment(at)}.
          <button type="button" className="button" onClick={() => set({ at: "" })}>
            Back to now
          </button>
        </p>
      )}
      {error ? <Failed error={error} retry={() => void refetch()} /> : !data ? <Waiting /> : <Table label="Events" rows={data.events} columns={columns} id={(row) => `${row.at} ${row.kind} ${row.subject} ${row.line}`} empty="No events in this time." className="max-h-[calc(100dvh-9rem)]" />}
      {data && !data.whole && <p className="text-sm text-soft">Only the newest 300 are listed; choose a shorter time.</p>}
    </div>
  );
}
