import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { fileOf, requestsPage, type Filters, type LedgerRow } from "../../api/requests";
import { Icon } from "../../components/icons";
import { Notices } from "../../components/Notices";
import { moment } from "../../lib/format";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { chosen, COLUMNS, columnsText, ORDERS, type ColumnId } from "./columns";
import { Drawer } from "./Drawer";
import { Explore, type Known } from "./Explore";
import { Following } from "./Following";
import { List } from "./List";
import { QueryBar } from "./QueryBar";
import { SavedViews } from "./SavedViews";

const REFRESH_MS = 5000;
const names = ["outcome", "reason", "pool", "tenant", "tier", "entitlement", "key_id", "user", "backend", "model", "request_id", "slo_met", "waited_over", "waited_under", "ttft_over", "ttft_under", "total_over", "total_under", "from", "to"] as const satisfies (keyof Filters)[];

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
  const following = query.get("follow") === "1";
  const offered = COLUMNS.map(({ id }) => id).filter((id) => id !== "backend" || user.role !== "member");
  const columns = chosen(query.get("columns")).filter((id) => offered.includes(id));
  const [known, setKnown] = useState<Known>({});
  const { data, error, isPending, isPlaceholderData, isFetchingNextPage, hasNextPage, fetchNextPage } = useInfiniteQuery({
    queryKey: ["requests", filters, order],
    queryFn: ({ pageParam, signal }) => requestsPage(filters, pageParam, order, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
    placeholderData: keepPreviousData,
    enabled: !following,
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
  const [followed, setFollowed] = useState<readonly LedgerRow[]>([]);
  const onScreen = following ? followed : rows;
  const shownAt = onScreen.findIndex((row) => row.request_id === open);

  return (
    <>
      <title>Requests · Quartermaster</title>
      <div className="flex flex-wrap items-end justify-between gap-3">
        <div>
          <h1 className="text-lg font-semibold tracking-tight">Requests</h1>
          <p className="mt-0.5 text-sm text-soft">Every request that ended, and why. Prompts and answers are not stored.</p>
        </div>
        <div className="flex flex-wrap items-center gap-1.5">
          <button type="button" className="button gap-1.5" title={following ? "Back to the newest first" : "Shows requests as they end"} onClick={() => change(following ? { follow: "", summary: "" } : { follow: "1", summary: "0", order: "", from: "", to: "" })}>
            <Icon name={following ? "stop" : "play"} />
            {following ? "Stop following" : "Follow"}
          </button>
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
      {following && <Following filters={filters} columns={columns} open={(id) => change({ request: id })} onRows={setFollowed} />}
      {!following && error && (
        <p role="alert" className="mb-3 rounded-md bg-bad-bg px-3 py-2 text-sm text-bad">
          {error.message} {rows.length > 0 && "The rows below are out of date."}
        </p>
      )}
      {following ? null : isPending && !error ? (
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
          <List rows={rows} columns={columns} order={order} onOrder={(by) => change({ order: by })} old={isPlaceholderData} onOpen={(id) => change({ request: id })} />
          {older}
        </>
      )}
      <Notices />
      {open && <Drawer key={open} id={open} known={onScreen.find((row) => row.request_id === open)} onClose={() => change({ request: "", id: "" })} newer={shownAt > 0 ? onScreen[shownAt - 1]?.request_id : undefined} older={shownAt >= 0 ? onScreen[shownAt + 1]?.request_id : undefined} onShow={(id) => change({ request: id, id: "" })} />}
    </>
  );
}
