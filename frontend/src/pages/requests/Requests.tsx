import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { fileOf, requestsPage, type Filters, type LedgerRow } from "../../api/requests";
import { Icon } from "../../components/icons";
import { Notices } from "../../components/Notices";
import { clock, compact, count, day, duration, moment, NONE, oneZone, text, zone } from "../../lib/format";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { chosen, COLUMNS, columnsText, ORDERS, type ColumnId } from "./columns";
import { Drawer } from "./Drawer";
import { Explore, type Known } from "./Explore";
import { QueryBar } from "./QueryBar";
import { Outcome, Slo } from "./Outcome";
import { SavedViews } from "./SavedViews";

const REFRESH_MS = 5000;
const names = ["outcome", "reason", "pool", "tenant", "tier", "entitlement", "key_id", "user", "backend", "model", "request_id", "slo_met", "waited_over", "waited_under", "ttft_over", "ttft_under", "total_over", "total_under", "from", "to"] as const satisfies (keyof Filters)[];

const took = (ms: number | null): string => text(duration(ms ?? undefined));

interface Cell {
  right?: boolean;
  /** Not on a phone: the row has it elsewhere, or it has no room. */
  wide?: boolean;
  show: (row: LedgerRow) => ReactNode;
}

const CELLS: Record<ColumnId, Cell> = {
  outcome: {
    show: (row) => (
      <>
        <Outcome outcome={row.outcome} reason={row.reason} />
        <span className="block max-w-40 truncate text-2xs text-faint sm:hidden">
          {row.tenant}, {row.tier}
        </span>
      </>
    ),
  },
  tenant: { wide: true, show: (row) => <span title={row.entitlement}>{row.tenant}</span> },
  tier: { wide: true, show: (row) => row.tier },
  waited: { right: true, show: (row) => took(row.queue_ms) },
  ttft: { right: true, show: (row) => took(row.ttft_ms) },
  total: { right: true, show: (row) => took(row.total_ms) },
  tokens: {
    right: true,
    show: (row) => (
      <>
        {compact(row.input_tokens || row.input_tokens_est)} <span className="text-faint">·</span> <span className="inline-block min-w-10">{row.outcome === "refused" ? NONE : count(row.output_tokens)}</span>
      </>
    ),
  },
  slo: { show: (row) => <Slo met={row.slo_met} /> },
  backend: { show: (row) => <span className="text-soft">{row.backend || NONE}</span> },
  entitlement: { wide: true, show: (row) => row.entitlement },
  key: { wide: true, show: (row) => <span className="font-mono text-xs">{row.key_id}</span> },
  pool: { wide: true, show: (row) => row.pool || NONE },
  model: { wide: true, show: (row) => row.model || NONE },
  policy: { wide: true, show: (row) => row.policy || NONE },
};

function Line({ row, columns, zoned, onOpen }: { row: LedgerRow; columns: readonly ColumnId[]; zoned: boolean; onOpen: () => void }) {
  const received = Date.parse(row.received_at) / 1000;
  return (
    <tr className="cursor-pointer border-t border-line hover:bg-raised/60" onClick={onOpen}>
      <td className="px-3 py-1.5 whitespace-nowrap max-sm:px-2" title={row.received_at}>
        <span className="hidden text-faint sm:inline">{day(received)} </span>
        {clock(received)}
        {zoned && <span className="text-faint"> {zone(received)}</span>}
      </td>
      <th scope="row" className="px-3 text-left font-normal max-sm:px-2">
        <button
          type="button"
          className="link font-mono text-xs whitespace-nowrap"
          title={row.request_id}
          onClick={(event) => {
            event.stopPropagation();
            onOpen();
          }}
          aria-label={`…${row.request_id.slice(-8)}, open details`}
        >
          …{row.request_id.slice(-8)}
        </button>
      </th>
      {columns.map((id) => {
        const cell = CELLS[id];
        return (
          <td key={id} className={`max-w-48 truncate px-3 max-sm:px-2 max-sm:py-1.5 ${cell.right ? "text-right whitespace-nowrap" : ""} ${cell.wide ? "max-sm:hidden" : ""}`}>
            {cell.show(row)}
          </td>
        );
      })}
    </tr>
  );
}

/** Which columns are shown. */
function Columns({ ids, offered, onChange }: { ids: readonly ColumnId[]; offered: readonly ColumnId[]; onChange: (ids: readonly ColumnId[]) => void }) {
  return (
    <details className="relative">
      <summary className="button list-none [&::-webkit-details-marker]:hidden">Columns</summary>
      <fieldset className="absolute right-0 z-10 mt-1 grid w-52 gap-1 rounded-md border border-edge bg-panel p-3 text-sm shadow-lg">
        <legend className="sr-only">Columns shown</legend>
        {COLUMNS.filter(({ id }) => offered.includes(id)).map(({ id, label }) => (
          <label key={id} className="flex items-center gap-2">
            <input type="checkbox" className="size-4 accent-(--accent)" checked={ids.includes(id)} onChange={(event) => onChange(event.target.checked ? [...ids, id] : ids.filter((one) => one !== id))} />
            {label}
          </label>
        ))}
      </fieldset>
    </details>
  );
}

/** What became of each request, newest first. */
export function Requests() {
  const [query, setQuery] = useAddress();
  const filters = Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""])) as unknown as Filters;
  const filtered = names.some((name) => filters[name] !== "");
  const open = query.get("request") ?? query.get("id"); // id: an x-request-id that somebody pasted into the address
  const change = (changes: Record<string, string>) =>
    setQuery(
      (old) => {
        for (const [name, value] of Object.entries(changes)) {
          if (value) old.set(name, value);
          else old.delete(name);
        }
        return old;
      },
      { replace: !("request" in changes) },
    );

  const asked = query.get("order") ?? "";
  const order = Object.values(ORDERS).includes(asked) ? asked : "";
  const offered = COLUMNS.map(({ id }) => id).filter((id) => id !== "backend" || user.role !== "member");
  const columns = chosen(query.get("columns")).filter((id) => offered.includes(id));
  const [known, setKnown] = useState<Known>({});
  const { data, error, isPending, isPlaceholderData, isFetchingNextPage, hasNextPage, fetchNextPage } = useInfiniteQuery({
    queryKey: ["requests", filters, order],
    queryFn: ({ pageParam, signal }) => requestsPage(filters, pageParam, order, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
    placeholderData: keepPreviousData,
    // Older pages do not change; whoever reads them is not pulled back to the top.
    refetchInterval: ({ state }) => ((state.data?.pages.length ?? 0) > 1 ? false : REFRESH_MS),
  });
  const ordered = COLUMNS.find(({ id }) => ORDERS[id] === order)?.label;
  const rows = data?.pages.flatMap((page) => page.results) ?? [];
  const searchedTo = data?.pages.at(-1)?.searched_to;
  const reached = searchedTo ? Date.parse(searchedTo) / 1000 : undefined;
  const older = hasNextPage && (
    <div className="mt-3 flex flex-wrap items-center justify-center gap-3 text-sm text-soft">
      {reached !== undefined && rows.length > 0 && !order && (
        <span role="status">
          Searched back to {moment(reached)}.
        </span>
      )}
      <button type="button" className="button" disabled={isFetchingNextPage} onClick={() => void fetchNextPage()}>
        {`${reached === undefined ? "Load" : "Search"}${isFetchingNextPage ? "ing" : ""} older requests`}
      </button>
    </div>
  );
  const shownAt = rows.findIndex((row) => row.request_id === open);
  const timeZone = oneZone(rows.map((row) => Date.parse(row.received_at) / 1000));
  const head = "sticky top-0 z-1 bg-panel px-3 py-2 font-medium whitespace-nowrap";

  return (
    <>
      <title>Requests · Quartermaster</title>
      <div className="flex flex-wrap items-end justify-between gap-3">
        <div>
          <h1 className="text-lg font-semibold tracking-tight">Requests</h1>
          <p className="mt-0.5 text-sm text-soft">Every request that ended, and why. Prompts and answers are not stored.</p>
        </div>
        <div className="flex flex-wrap items-center gap-1.5">
          <SavedViews />
          <a className="button" href={fileOf(filters, "csv")} download>
            CSV
          </a>
          <a className="button" href={fileOf(filters, "json")} download>
            JSON
          </a>
          <Columns ids={columns} offered={offered} onChange={(ids) => change({ columns: columnsText(ids) })} />
        </div>
      </div>
      <QueryBar filters={filters} known={known} onChange={change} />
      <Explore filters={filters} onChange={change} onKnown={setKnown} />
      {error && (
        <p role="alert" className="mb-3 rounded-md bg-bad-bg px-3 py-2 text-sm text-bad">
          {error.message} {rows.length > 0 && "The rows below are out of date."}
        </p>
      )}
      {isPending && !error ? (
        <div className="skeleton h-96" />
      ) : rows.length === 0 ? (
        !error && (
          <div className="panel p-10 text-center text-sm text-soft">
            {reached !== undefined ? (
              <p role="status">
                No request since {moment(reached)} fits these filters. Older ones have not been searched yet.
              </p>
            ) : filtered ? (
              "No request matches these filters."
            ) : (
              "No requests yet. The first one appears here a second after it ends."
            )}
            {older}
          </div>
        )
      ) : (
        <>
          {order && (
            <p className="mb-2 text-sm text-soft" role="status">
              {isPlaceholderData ? (
                `Sorting by ${ordered}…`
              ) : (
                <>
                  The {rows.length} largest by {ordered}
                  {reached !== undefined && `, of requests since ${moment(reached)}`}.
                </>
              )}
            </p>
          )}
          <div className={`panel overflow-x-auto ${isPlaceholderData ? "opacity-60" : ""}`} role="region" aria-label="Ended requests" aria-busy={isPlaceholderData} tabIndex={0}>
            <table className="w-full border-collapse text-sm">
              <thead>
                <tr className="text-2xs text-faint">
                  <th scope="col" className={`${head} text-left`}>
                    Received {timeZone && <span className="font-normal max-sm:block">{timeZone}</span>}
                  </th>
                  <th scope="col" className={`${head} text-left`}>Request</th>
                  {columns.map((id) => {
                    const { right, wide } = CELLS[id];
                    const by = ORDERS[id];
                    const label = COLUMNS.find((column) => column.id === id)!.label;
                    return (
                      <th key={id} scope="col" aria-sort={by && by === order ? "descending" : undefined} className={`${head} ${right ? "text-right" : "text-left"} ${wide ? "max-sm:hidden" : ""}`}>
                        {by ? (
                          <button type="button" className={`inline-flex items-center gap-1 hover:text-ink ${by === order ? "text-ink" : ""}`} title={by === order ? "Back to the newest first" : "The largest first"} onClick={() => change({ order: by === order ? "" : by })}>
                            {by === order && <Icon name="down" />}
                            {label}
                          </button>
                        ) : (
                          label
                        )}
                      </th>
                    );
                  })}
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <Line key={row.request_id} row={row} columns={columns} zoned={!timeZone} onOpen={() => change({ request: row.request_id })} />
                ))}
              </tbody>
            </table>
          </div>
          {older}
        </>
      )}
      <Notices />
      {open && <Drawer key={open} id={open} known={rows.find((row) => row.request_id === open)} onClose={() => change({ request: "", id: "" })} newer={shownAt > 0 ? rows[shownAt - 1]?.request_id : undefined} older={shownAt >= 0 ? rows[shownAt + 1]?.request_id : undefined} onShow={(id) => change({ request: id, id: "" })} />}
    </>
  );
}
