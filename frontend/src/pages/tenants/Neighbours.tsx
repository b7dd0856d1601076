import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import { neighboursOf, type Holder, type PoolWaits } from "../../api/neighbours";
import { Meter } from "../../components/Meter";
import { Segmented } from "../../components/Segmented";
import { Table, type Column } from "../../components/Table";
import { compact, percent, ranked, seconds, text, words } from "../../lib/format";
import { blame, CAUSES } from "./blame";
import { Failed, Waiting } from "./parts";

const REFRESH_MS = 10_000;
const WINDOWS = [
  { value: 5, label: "5 min" },
  { value: 15, label: "15 min" },
  { value: 60, label: "1 h" },
  { value: 360, label: "6 h" },
  { value: 1440, label: "24 h" },
] as const;

const columns = (own: string): Column<Holder>[] => [
  {
    label: "Tenant",
    by: (row) => row.tenant,
    cell: (row) =>
      row.tenant === own ? (
        <span className="text-soft">{own} itself</span>
      ) : (
        <Link className="link" to={`/tenants/${row.tenant}`}>
          {row.tenant}
        </Link>
      ),
  },
  {
    label: "Slots held during the wait",
    right: true,
    by: (row) => row.share,
    cell: (row) => (
      <span className="flex items-center justify-end gap-2">
        <Meter ratio={row.share} label={`Share of ${row.tenant}`} tone={row.tenant === own ? "plain" : "warn"} className="w-24 max-sm:w-14" />
        <span className="min-w-14">{text(percent(row.share))}</span>
      </span>
    ),
  },
  { label: "Slot time", right: true, by: (row) => row.slot_s, cell: (row) => text(seconds(row.slot_s)) },
  { label: "Requests", right: true, by: (row) => row.requests, cell: (row) => compact(row.requests) },
  { label: "Arrived later, granted earlier", right: true, by: (row) => row.overtook, cell: (row) => compact(row.overtook) },
  {
    label: "",
    right: true,
    cell: (row) => (
      <Link className="button" to={`/requests?tenant=${row.tenant}`}>
        Its requests
      </Link>
    ),
  },
];

function Waits({ waits, tenant }: { waits: PoolWaits; tenant: string }) {
  return (
    <section className="space-y-2" aria-label={`Waits in pool ${waits.pool}`}>
      <p className="text-base" data-testid="blame">
        {blame(waits, tenant)}
      </p>
      <p className="text-sm text-soft">
        Pool {waits.pool}: {compact(waits.requests)} of its requests waited, half of them over {text(seconds(waits.wait_p50_s))}, one in twenty over {text(seconds(waits.wait_p95_s))}, the longest {text(seconds(waits.longest_s))}.
        {!waits.whole && " There was more traffic than this page reads; the oldest part is left out."}
      </p>
      <Table label={`Slots of pool ${waits.pool}`} rows={waits.held} columns={columns(tenant)} id={(row) => row.tenant} empty="No request held a slot meanwhile." />
    </section>
  );
}

/** Who had the slots while this tenant waited. */
export function NeighboursPanel({ tenant }: { tenant: string }) {
  const [minutes, setMinutes] = useState(15);
  const { data, error, refetch } = useQuery({
    queryKey: ["neighbours", tenant, minutes],
    queryFn: ({ signal }) => neighboursOf(tenant, minutes, signal),
    refetchInterval: REFRESH_MS,
    placeholderData: keepPreviousData,
  });
  const refused = ranked(data?.refused);
  return (
    <section aria-labelledby="neighbours-title" className="space-y-4">
      <div className="flex flex-wrap items-end justify-between gap-x-6 gap-y-2">
        <div className="min-w-0">
          <h2 id="neighbours-title" className="text-sm font-semibold">
            Neighbours
          </h2>
          <p className="text-sm text-soft">Which tenants held the slots while its requests waited, and whose requests arrived later but were granted earlier.</p>
        </div>
        <Segmented label="Period" value={minutes} options={WINDOWS} onChange={setMinutes} />
      </div>
      {error && <Failed error={error} retry={() => void refetch()} />}
      {!data ? (
        !error && <Waiting />
      ) : (
        <>
          {!data.live && <p className="rounded-md bg-warn-bg px-3 py-1.5 text-sm text-warn">Redis does not answer, so requests that wait or run now are not included.</p>}
          {data.pools.length === 0 ? (
            <p className="panel p-6 text-center text-sm text-soft" data-testid="blame">
              {data.received ? (data.engines.length ? "None of its requests waited in the queue in this period, but some waited inside the engines." : "None of its requests waited in this period.") : "It sent no requests in this period."}
            </p>
          ) : (
            data.pools.map((waits) => <Waits key={waits.pool} waits={waits} tenant={tenant} />)
          )}
          {data.engines.map((line) => (
            <section key={line.pool} aria-label={`Prompts ahead in the engines of pool ${line.pool}`} className="panel p-4 text-sm" data-testid="in-engines">
              <h3 className="font-medium">Ahead of it inside the engines of pool {line.pool}</h3>
              <p className="mt-1">
                {compact(line.requests)} of its prompts were behind others in the same engine, for at most {text(seconds(line.waited_s))} in total. Prompt tokens ahead:{" "}
                {line.tenants
                  .slice(0, 6)
                  .map(({ tenant: name, prompt_tokens: tokens }) => `${name === tenant ? "its own" : name} ${compact(tokens)}`)
                  .join(", ")}
                .
              </p>
            </section>
          ))}
          {refused.length > 0 && (
            <section aria-label="Refusals" className="panel p-4 text-sm">
              <h3 className="font-medium">Refused meanwhile</h3>
              <ul className="mt-1 space-y-0.5">
                {refused.map(([reason, n]) => (
                  <li key={reason} className="flex flex-wrap gap-x-2">
                    <Link className="link" to={`/requests?tenant=${tenant}&outcome=refused&reason=${reason}`}>
                      {compact(n)} {words(reason)}
                    </Link>
                    <span className="text-soft">{CAUSES[reason] ?? "the request itself"}</span>
                  </li>
                ))}
              </ul>
            </section>
          )}
        </>
      )}
    </section>
  );
}
