import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { get } from "../../api/client";
import type { components } from "../../api/schema";
import { Badge, type Tone } from "../../components/Badge";
import { since } from "../../components/Outages";
import { Table, type Column } from "../../components/Table";
import { useOutages } from "../../feed/live";
import { cutsPast } from "../../feed/outages";
import { clock, compact, counted, moment, seconds, text, utc } from "../../lib/format";
import { useAddress } from "../../lib/useAddress";
import { Failed, Waiting } from "../tenants/parts";

type Answer = components["schemas"]["Moment"];
type Row = Answer["rows"][number];
type Tenant = Answer["tenants"][number];

const tones: Record<string, Tone> = { waiting: "warn", prefill: "plain", decode: "plain" };
const LONGEST_S = 1800; // what ran for longer is not looked for by the server
const STEPS = [-60, -10, 10, 60];

const rowColumns: Column<Row>[] = [
  {
    label: "Request",
    cell: (row) => (
      <Link className="link font-mono text-xs" to={`/requests?request=${encodeURIComponent(row.request_id)}`} title={row.request_id}>
        …{row.request_id.slice(-8)}
      </Link>
    ),
  },
  { label: "State", by: (row) => row.state, cell: (row) => <Badge tone={tones[row.state]}>{row.state}</Badge> },
  { label: "For", right: true, by: (row) => row.for_s, cell: (row) => text(seconds(row.for_s)) },
  { label: "Tenant", by: (row) => row.tenant, cell: (row) => row.tenant },
  { label: "Tier", by: (row) => row.tier, cell: (row) => row.tier },
  { label: "Backend", by: (row) => row.backend, cell: (row) => row.backend || "–" },
  { label: "Prompt", unit: "tokens", right: true, by: (row) => row.prompt_tokens, cell: (row) => compact(row.prompt_tokens) },
];

const tenantColumns: Column<Tenant>[] = [
  { label: "Tenant", by: (row) => row.tenant, cell: (row) => <Link className="link" to={`/tenants/${row.tenant}`}>{row.tenant}</Link> },
  { label: "Waiting", right: true, by: (row) => row.waiting, cell: (row) => compact(row.waiting) },
  { label: "Running", right: true, by: (row) => row.running, cell: (row) => compact(row.running) },
  { label: "Prompt tokens", unit: "in prefill", right: true, by: (row) => row.prompt_tokens, cell: (row) => compact(row.prompt_tokens) },
];

/** "3 requests waited, 12 ran." `whole`: the ledger has all that ended. */
export function thenOf({ waiting, running }: Pick<Answer, "waiting" | "running">, whole: boolean): string {
  if (!whole && waiting + running === 0) return "Which requests waited and ran then is unknown.";
  const waited = waiting === 0 ? "No request waited" : `${counted(waiting, "request")} waited`;
  return whole ? `${waited}, ${compact(running)} ran.` : `At least ${compact(waiting)} waited, at least ${compact(running)} ran.`;
}

/** Which requests ran and which waited in a pool at one moment of the past. */
export function Moment() {
  const [query, setQuery] = useAddress();
  const pool = query.get("pool") ?? "";
  const at = query.get("at") ?? "";
  const atS = Date.parse(at) / 1000;
  const { data, error, refetch } = useQuery({
    queryKey: ["moment", pool, at],
    queryFn: ({ signal }) => get<Answer>(`pools/${encodeURIComponent(pool)}/moment`, { at }, signal),
    enabled: pool !== "" && Number.isFinite(atS),
    placeholderData: keepPreviousData,
  });
  const outage = cutsPast(useOutages(), pool);
  const missing = outage && (outage.since === undefined || atS > outage.since - LONGEST_S) ? outage : undefined;
  const move = (s: number) =>
    setQuery((old) => {
      old.set("at", new Date((atS + s) * 1000).toISOString());
      return old;
    });
  return (
    <div className="space-y-4">
      <title>Moment · Quartermaster</title>
      <div className="flex flex-wrap items-end justify-between gap-3">
        <div>
          <h1 className="text-lg font-semibold tracking-tight">This moment</h1>
          {Number.isFinite(atS) && (
            <p className="text-sm text-soft">
              Pool {pool}, <time title={utc(atS)}>{moment(atS)}</time>. Requests that have ended since; those still running are not listed.
            </p>
          )}
        </div>
        {Number.isFinite(atS) && (
          <div className="flex flex-wrap gap-1.5">
            {STEPS.map((s) => (
              <button key={s} type="button" className="button" onClick={() => move(s)} title={clock(atS + s)}>
                {s < 0 ? `${-s} s earlier` : `${s} s later`}
              </button>
            ))}
            <Link className="button" to={`/?${new URLSearchParams({ pool, at: String(Math.round(atS + 120)), window: "5" })}`}>
              Charts
            </Link>
          </div>
        )}
      </div>
      {pool === "" || !Number.isFinite(atS) ? (
        <p className="panel p-4 text-sm text-soft">Open this page from a request, an alert or an event: it needs a pool and a time.</p>
      ) : error ? (
        <Failed error={error} retry={() => void refetch()} />
      ) : !data ? (
        <Waiting />
      ) : (
        <>
          <p className="text-base" data-testid="then">
            {thenOf(data, !missing)}
          </p>
          {missing && (
            <p className="text-sm text-warn" data-unknown>
              Requests that ended {since(missing)} are not in the ledger yet and are missing here.
            </p>
          )}
          <Table label="By tenant" rows={data.tenants} columns={tenantColumns} id={(row) => row.tenant} empty={missing ? "Unknown." : "No request of this pool was waiting or running."} />
          <Table label="Requests then" rows={data.rows} columns={rowColumns} id={(row) => row.request_id} empty={missing ? "Unknown." : "No request."} />
          {!data.whole && <p className="text-sm text-soft">There were more than are listed.</p>}
        </>
      )}
    </div>
  );
}
