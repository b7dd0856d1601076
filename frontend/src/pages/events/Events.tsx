import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { eventsOf, type Happened } from "../../api/events";
import { badgeOf } from "../../charts/marks";
import { Badge } from "../../components/Badge";
import { Icon } from "../../components/icons";
import { since } from "../../components/Outages";
import { Segmented } from "../../components/Segmented";
import { Table, type Column } from "../../components/Table";
import { useNow, useOutages } from "../../feed/live";
import { cutsPast } from "../../feed/outages";
import { clock, day, inZone, moment, oneZone, utc, zone } from "../../lib/format";
import { useAddress } from "../../lib/useAddress";
import { useNarrow } from "../../lib/useNarrow";
import { Failed, Waiting } from "../tenants/parts";
import { atOf, eventColumns, idOf } from "./columns";

const REFRESH_MS = 10_000;
const AROUND_S = 900;
const SPANS = [
  { value: "1", label: "1 h" },
  { value: "24", label: "24 h" },
  { value: "168", label: "7 d" },
] as const;

const NOTHING = "No events in this time.";

function ThatMoment({ row }: { row: Happened }) {
  const at = atOf(row);
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
}

const POOL: Column<Happened> = { label: "Pool", className: "whitespace-nowrap", cell: (row) => row.pool || "–" };
const THAT_MOMENT: Column<Happened> = { label: "That moment", className: "whitespace-nowrap", cell: (row) => <ThatMoment row={row} /> };

/** Where there is no room for columns: two lines an event, and all of it once it is opened. */
function Lines({ rows }: { rows: readonly Happened[] }) {
  if (rows.length === 0) return <p className="panel p-6 text-center text-sm text-soft">{NOTHING}</p>;
  const zoned = oneZone(rows.map(atOf));
  return (
    <>
      {zoned && <p className="text-2xs text-faint">Times in {zoned}</p>}
      <ul aria-label="Events" className="panel divide-y divide-line">
        {rows.map((row) => (
          <li key={idOf(row)}>
            <details className="group text-sm">
              <summary className="list-none px-3 py-1.5 hover:bg-raised/50 [&::-webkit-details-marker]:hidden">
                <span className="flex items-center gap-2 text-2xs text-faint">
                  <time title={utc(atOf(row))}>
                    {day(atOf(row))}, {clock(atOf(row))}
                    {!zoned && ` ${zone(atOf(row))}`}
                  </time>
                  <Badge tone={badgeOf(row)}>{row.kind}</Badge>
                  <span className="ml-auto transition-transform group-open:rotate-180">
                    <Icon name="down" />
                  </span>
                </span>
                <span className="block truncate group-open:whitespace-normal">{inZone(row.line)}</span>
              </summary>
              <dl className="grid grid-cols-[auto_minmax(0,1fr)] gap-x-4 gap-y-1 px-3 pb-2">
                <dt className="text-faint">Pool</dt>
                <dd>{row.pool || "–"}</dd>
                <dt className="text-faint">By</dt>
                <dd>{row.actor || "–"}</dd>
                <dt className="text-faint">That moment</dt>
                <dd>
                  <ThatMoment row={row} />
                </dd>
              </dl>
            </details>
          </li>
        ))}
      </ul>
    </>
  );
}

/** One stream of what happened: cause and effect beside each other. */
export function Events() {
  const [query, setQuery] = useAddress();
  const now = useNow();
  const narrow = useNarrow();
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
      {error ? (
        <Failed error={error} retry={() => void refetch()} />
      ) : !data ? (
        <Waiting />
      ) : narrow ? (
        <Lines rows={data.events} />
      ) : (
        <Table label="Events" rows={data.events} columns={[...eventColumns(data.events, [POOL]), THAT_MOMENT]} id={idOf} empty={NOTHING} className="max-h-[calc(100dvh-9rem)]" />
      )}
      {data && !data.whole && <p className="text-sm text-soft">Only the newest 300 are listed; choose a shorter time.</p>}
    </div>
  );
}
