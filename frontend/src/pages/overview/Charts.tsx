import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { memo, useMemo, useState } from "react";
import { Link } from "react-router";
import { eventsOf } from "../../api/events";
import { pastOf } from "../../api/history";
import { ColorBook } from "../../charts/palette";
import { groups, panels, type ColorBooks, type Group } from "../../charts/panels";
import { marksOf } from "../../charts/marks";
import { TimeChart } from "../../charts/TimeChart";
import { useTenantColors } from "../../charts/useTenantColors";
import { CopyButton } from "../../components/Copy";
import { Segmented } from "../../components/Segmented";
import type { Point, Snapshot } from "../../feed/types";
import { clock, moment, zone } from "../../lib/format";
import { user } from "../../lib/page";
import { useDark } from "../../lib/theme";
import { useAddress } from "../../lib/useAddress";
import { joined, linkTo, question, rangeOf, WINDOWS, type Range } from "./range";

/** Colours of a pool's names; they outlive a visit to another page. */
const BANDS = ["reserved band", "elastic band", "spot band", "preemptible band"]; // as scheduling/core/policies/queues/bands.py names them
const colors = new Map<string, ColorBooks>();
function colorsOf(pool: string): ColorBooks {
  let found = colors.get(pool);
  if (!found) colors.set(pool, (found = { reasons: new ColorBook(), tiers: new ColorBook(), backends: new ColorBook(), parts: new ColorBook(BANDS) }));
  return found;
}

const LISTED = 3;
const POOL_WIDE: readonly string[] = ["parts", "violations", "ttft-tiers", "tbt-tiers", "ttlt-tiers", "gpu", "memory"];
const order = Object.keys(groups) as Group[];

const when = (at: number): string => (Date.now() / 1000 - at > 43_200 ? moment(at) : `${clock(at)} ${zone(at)}`);

/** The pool over time, all charts on one axis. Drag across one to look closer in all. */
export const Charts = memo(function Charts({ snapshot, history, wall }: { snapshot: Snapshot; history: readonly Point[]; wall: boolean }) {
  const dark = useDark();
  const [query, setQuery] = useAddress();
  const [zoom, setZoom] = useState<Range | null>(null);
  const { pool, at } = snapshot;
  const own = snapshot.scope === "own";
  const asked = Number(query.get("window"));
  const minutes = asked >= 1 && asked <= 10_080 ? asked : 5;
  const linked = Number(query.get("at"));
  const still = linked > 0 && linked < at ? linked : null;
  const range = rangeOf(minutes, at, still, zoom, history[0]?.at);
  const ask = question(range, at, still === null && zoom === null);
  const { data, error } = useQuery({
    queryKey: ["past", pool, ask?.minutes, ask?.until],
    queryFn: ({ signal }) => pastOf(pool, ask!.minutes, ask!.until, signal),
    enabled: ask !== null,
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => (ask?.until === 0 ? Math.max(10, state.data?.step_s ?? 10) * 1000 : false),
    staleTime: ask?.until === 0 ? 5000 : Infinity,
  });
  const past = ask !== null && data?.pool === pool ? data : undefined;
  const step = ask === null ? 1 : (past?.step_s ?? 10);
  const points = useMemo(() => (past ? joined(past.frames, past.step_s, history) : history), [past, history]);
  const tiersNow = snapshot.slo?.by_tier;
  const elastic = useMemo(
    () => Object.entries(snapshot.entitlements ?? {}).flatMap(([name, e]) => (e.class === "elastic" ? [name] : [])),
    [snapshot.entitlements],
  );
  const slots = useTenantColors();
  const entitled = snapshot.entitlements;
  const owners = useMemo(() => Object.fromEntries(Object.entries(entitled ?? {}).flatMap(([name, e]) => (e.tenant ? [[name, e.tenant]] : []))), [entitled]);
  const { from, to } = range;
  const list = useMemo(() => panels({ points, from, to, dark, step, tiersNow, elastic, slots, owners, ...colorsOf(pool) }), [points, from, to, dark, step, tiersNow, elastic, slots, owners, pool]);
  const zoomed = useMemo(() => (a: number, b: number) => setZoom({ from: a, to: b }), []);
  const reset = useMemo(() => () => setZoom(null), []);
  const set = (changes: Record<string, string>) =>
    setQuery((old) => {
      for (const [name, value] of Object.entries(changes)) {
        if (value) old.set(name, value);
        else old.delete(name);
      }
      return old;
    });
  const minute = Math.floor(to / 10);
  // biome-ignore lint/correctness/useExhaustiveDependencies: asked anew every ten seconds of the shown time, not each second
  const span = useMemo(() => ({ from, to: to + 1 }), [minute, pool, to - from > 3600, zoom]);
  const happened = useQuery({
    queryKey: ["events", pool, Math.floor(span.from / 10), minute],
    queryFn: ({ signal }) => eventsOf(pool, span.from, span.to, signal),
    enabled: user.role !== "member" && user.role !== null,
    placeholderData: keepPreviousData,
    staleTime: 10_000,
  });
  const marks = useMemo(() => marksOf(happened.data?.events ?? []), [happened.data]);
  const shown = list.filter((panel) => !own || !POOL_WIDE.includes(panel.id));
  return (
    <section aria-labelledby="charts-title">
      <div className="mb-2 flex flex-wrap items-center gap-2">
        <h2 id="charts-title" className="text-sm font-semibold">
          Over time
        </h2>
        {!wall && <span className="hidden text-2xs text-faint lg:inline">Drag across a chart to zoom, double-click to go back</span>}
        <div className="ml-auto flex flex-wrap items-center justify-end gap-2">
          {(zoom || still !== null) && (
            <Link className="button" to={`/requests?${new URLSearchParams({ pool, from: new Date(from * 1000).toISOString(), to: new Date(to * 1000).toISOString() })}`}>
              Requests of this time
            </Link>
          )}
          {zoom && (
            <button type="button" className="button" onClick={reset}>
              {when(zoom.from)} to {when(zoom.to)}: reset
            </button>
          )}
          {!wall && <CopyButton text={linkTo(location.href, range)} label="Link to this moment" />}
          <Segmented
            label="Time shown"
            value={zoom ? null : minutes}
            options={WINDOWS}
            onChange={(value) => {
              setZoom(null);
              set({ window: String(value), at: "" });
            }}
          />
        </div>
      </div>
      {still !== null && (
        <p className="mb-2 flex flex-wrap items-center gap-x-3 gap-y-1 rounded-md bg-warn-bg px-3 py-1.5 text-sm text-warn" data-testid="moment">
          The charts show the time until {when(still)}. The figures and tables are live.
          <button type="button" className="button" onClick={() => set({ at: "" })}>
            Back to now
          </button>
        </p>
      )}
      {error && <p className="mb-2 text-sm text-bad">The history could not be read: {error.message}</p>}
      {!wall && marks.length > 0 && (
        <p className="mb-2 text-2xs text-soft" data-testid="happened">
          Dashed lines: {marks.slice(-LISTED).toReversed().map(({ at, line }) => `${clock(at)} ${line}`).join(" · ")}{" "}
          <Link className="link" to={`/events?${new URLSearchParams({ pool, at: String(Math.round(to)) })}`}>
            {marks.length > LISTED ? `all ${marks.length} events` : "events"}
          </Link>
        </p>
      )}
      {wall && (
        // As many as fit beside each other: a wall is looked at, not scrolled.
        <div className="grid grid-cols-[repeat(auto-fill,minmax(min(100%,20rem),1fr))] gap-2 min-[2200px]:grid-cols-6">
          {shown.map((panel) => (
            <TimeChart key={panel.id} panel={panel} from={from} to={to} dark={dark} onZoom={zoomed} onReset={reset} marks={marks} wall />
          ))}
        </div>
      )}
      <div className="space-y-4">
        {!wall && order.map((group) => {
          const part = shown.filter((panel) => panel.group === group);
          if (part.length === 0) return null;
          return (
            <div key={group}>
              <h3 className="label mb-1.5">{groups[group]}</h3>
              <div className={`grid grid-cols-1 gap-2 md:grid-cols-2 ${part.length % 3 === 0 ? "xl:grid-cols-3" : part.length === 4 ? "xl:grid-cols-4" : ""}`}>
                {part.map((panel) => (
                  <TimeChart key={panel.id} panel={panel} from={from} to={to} dark={dark} onZoom={zoomed} onReset={reset} marks={marks} />
                ))}
              </div>
            </div>
          );
        })}
      </div>
    </section>
  );
});
