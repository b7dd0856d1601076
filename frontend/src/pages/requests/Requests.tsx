import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useSearchParams } from "react-router";
import { requestsPage, type Filters, type LedgerRow } from "../../api/requests";
import { Notices } from "../../components/Notices";
import { clock, compact, count, day, duration, moment, NONE, text, zone } from "../../lib/format";
import { Drawer } from "./Drawer";
import { Explore, type Known } from "./Explore";
import { QueryBar } from "./QueryBar";
import { Outcome, Slo } from "./Outcome";

const REFRESH_MS = 5000;
const names = ["outcome", "reason", "pool", "tenant", "tier", "entitlement", "key_id", "user", "backend", "request_id", "slo_met", "waited_over", "waited_under", "ttft_over", "ttft_under", "total_over", "total_under", "from", "to"] as const satisfies (keyof Filters)[];

const took = (ms: number | null): string => text(duration(ms ?? undefined));

function Line({ row, onOpen }: { row: LedgerRow; onOpen: () => void }) {
  const received = Date.parse(row.received_at) / 1000;
  return (
    <tr className="cursor-pointer border-t border-line hover:bg-raised/60" onClick={onOpen}>
      <td className="px-3 py-1.5 whitespace-nowrap max-sm:px-2" title={row.received_at}>
        <span className="hidden text-faint sm:inline">{day(received)} </span>
        {clock(received)} <span className="hidden text-faint sm:inline">{zone(received)}</span>
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
      <td className="px-3 max-sm:px-2 max-sm:py-1.5">
        <Outcome outcome={row.outcome} reason={row.reason} />
        <span className="block max-w-40 truncate text-2xs text-faint sm:hidden">
          {row.tenant}, {row.tier}
        </span>
      </td>
      <td className="max-w-44 truncate px-3 max-sm:hidden" title={row.entitlement}>
        {row.tenant}
      </td>
      <td className="px-3 whitespace-nowrap max-sm:hidden">{row.tier}</td>
      <td className="px-3 text-right whitespace-nowrap">{took(row.queue_ms)}</td>
      <td className="px-3 text-right whitespace-nowrap">{took(row.ttft_ms)}</td>
      <td className="px-3 text-right whitespace-nowrap">{took(row.total_ms)}</td>
      <td className="px-3 text-right whitespace-nowrap">
        {compact(row.input_tokens || row.input_tokens_est)} <span className="text-faint">·</span>{" "}
        <span className="inline-block min-w-10">{row.outcome === "refused" ? NONE : count(row.output_tokens)}</span>
      </td>
      <td className="px-3">
        <Slo met={row.slo_met} />
      </td>
      {row.backend !== undefined && <td className="max-w-40 truncate px-3 text-soft">{row.backend || NONE}</td>}
    </tr>
  );
}

/** What became of each request, newest first. */
export function Requests() {
  const [query, setQuery] = useSearchParams();
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

  const [known, setKnown] = useState<Known>({});
  const { data, error, isPending, isFetchingNextPage, hasNextPage, fetchNextPage } = useInfiniteQuery({
    queryKey: ["requests", filters],
    queryFn: ({ pageParam, signal }) => requestsPage(filters, pageParam, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
    placeholderData: keepPreviousData,
    // Older pages do not change; whoever reads them is not pulled back to the top.
    refetchInterval: ({ state }) => ((state.data?.pages.length ?? 0) > 1 ? false : REFRESH_MS),
  });
  const rows = data?.pages.flatMap((page) => page.results) ?? [];
  const searchedTo = data?.pages.at(-1)?.searched_to;
  const reached = searchedTo ? Date.parse(searchedTo) / 1000 : undefined;
  const older = hasNextPage && (
    <div className="mt-3 flex flex-wrap items-center justify-center gap-3 text-sm text-soft">
      {reached !== undefined && rows.length > 0 && (
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
  const withBackend = rows.some((row) => row.backend !== undefined);
  const head = "sticky top-0 z-1 bg-panel px-3 py-2 font-medium whitespace-nowrap";

  return (
    <>
      <title>Requests · Quartermaster</title>
      <h1 className="text-lg font-semibold tracking-tight">Requests</h1>
      <p className="mt-0.5 text-sm text-soft">Every request that ended, and why. Prompts and answers are not stored.</p>
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
          <div className="panel overflow-x-auto" role="region" aria-label="Ended requests" tabIndex={0}>
            <table className="w-full border-collapse text-sm">
              <thead>
                <tr className="text-2xs text-faint">
                  <th scope="col" className={`${head} text-left`}>Received</th>
                  <th scope="col" className={`${head} text-left`}>Request</th>
                  <th scope="col" className={`${head} text-left`}>Outcome</th>
                  <th scope="col" className={`${head} text-left max-sm:hidden`}>Tenant</th>
                  <th scope="col" className={`${head} text-left max-sm:hidden`}>Tier</th>
                  <th scope="col" className={`${head} text-right`}>Waited</th>
                  <th scope="col" className={`${head} text-right`}>TTFT</th>
                  <th scope="col" className={`${head} text-right`}>Total</th>
                  <th scope="col" className={`${head} text-right`}>Tokens in · out</th>
                  <th scope="col" className={`${head} text-left`}>SLO</th>
                  {withBackend && <th scope="col" className={`${head} text-left`}>Backend</th>}
                </tr>
              </thead>
              <tbody>
                {rows.map((row) => (
                  <Line key={row.request_id} row={row} onOpen={() => change({ request: row.request_id })} />
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
