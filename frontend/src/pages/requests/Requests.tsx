import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { useSearchParams } from "react-router";
import { REASONS } from "../../api/generated";
import { requestsPage, type Filters, type LedgerRow } from "../../api/requests";
import { Notices } from "../../components/Notices";
import { clock, compact, count, day, duration, moment, NONE, text, words, zone } from "../../lib/format";
import { Drawer } from "./Drawer";
import { Outcome, Slo } from "./Outcome";

const REFRESH_MS = 5000;
const names = ["outcome", "reason", "pool", "tenant", "request_id", "slo_met"] as const satisfies (keyof Filters)[];

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

function TextFilter({ label, value, width, onChange }: { label: string; value: string; width: string; onChange: (value: string) => void }) {
  const [draft, setDraft] = useState(value);
  useEffect(() => setDraft(value), [value]);
  // The address may have changed since it was typed (a row was opened): the latest one is added to.
  const latest = useRef(onChange);
  latest.current = onChange;
  // biome-ignore lint/correctness/useExhaustiveDependencies: only typing sends; a value that comes from the address was sent
  useEffect(() => {
    if (draft === value) return;
    const timer = setTimeout(() => latest.current(draft.trim()), 350);
    return () => clearTimeout(timer);
  }, [draft]);
  return (
    <label className="flex flex-col gap-1">
      <span className="label">{label}</span>
      <input type="search" className={`field ${width}`} value={draft} onChange={(event) => setDraft(event.target.value)} spellCheck={false} autoComplete="off" />
    </label>
  );
}

function Choice({ label, value, options, onChange }: { label: string; value: string; options: [string, string][]; onChange: (value: string) => void }) {
  return (
    <label className="flex flex-col gap-1">
      <span className="label">{label}</span>
      <select className="field" value={value} onChange={(event) => onChange(event.target.value)}>
        <option value="">any</option>
        {options.map(([option, text]) => (
          <option key={option} value={option}>
            {text}
          </option>
        ))}
      </select>
    </label>
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
  const reasons = filters.outcome ? (REASONS[filters.outcome] ?? []) : Object.values(REASONS).flat();
  const withBackend = rows.some((row) => row.backend !== undefined);
  const head = "sticky top-0 z-1 bg-panel px-3 py-2 font-medium whitespace-nowrap";

  return (
    <>
      <title>Requests · Quartermaster</title>
      <h1 className="text-lg font-semibold tracking-tight">Requests</h1>
      <p className="mt-0.5 text-sm text-soft">Every request that ended, and why. Prompts and answers are not stored.</p>
      <form className="mt-4 mb-3 flex flex-wrap items-end gap-3" role="search" onSubmit={(event) => event.preventDefault()}>
        <Choice label="Outcome" value={filters.outcome} options={Object.keys(REASONS).map((o) => [o, o])} onChange={(outcome) => change({ outcome, reason: "" })} />
        <Choice label="Reason" value={filters.reason} options={reasons.map((r) => [r, words(r)])} onChange={(reason) => change({ reason })} />
        <Choice
          label="SLO"
          value={filters.slo_met}
          options={[
            ["true", "met"],
            ["false", "missed"],
          ]}
          onChange={(slo_met) => change({ slo_met })}
        />
        <TextFilter label="Tenant" value={filters.tenant} width="w-36" onChange={(tenant) => change({ tenant })} />
        <TextFilter label="Request id (x-request-id)" value={filters.request_id} width="w-56" onChange={(request_id) => change({ request_id })} />
        {filtered && (
          <button type="button" className="button" onClick={() => change(Object.fromEntries(names.map((name) => [name, ""])))}>
            Clear
          </button>
        )}
      </form>
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
      {open && <Drawer key={open} id={open} known={rows.find((row) => row.request_id === open)} onClose={() => change({ request: "", id: "" })} />}
    </>
  );
}
