import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useCallback, useDeferredValue, useEffect, useMemo } from "react";
import { Link } from "react-router";
import { ConnectionNotice, ConnectionPill } from "../../components/ConnectionPill";
import { Icon } from "../../components/icons";
import { Empty } from "../../components/Shell";
import { PoolSelect } from "../../components/PoolSelect";
import { Outages, Unknown, unknownSince } from "../../components/Outages";
import { get } from "../../api/client";
import type { AlertRule } from "../../api/operate";
import { blank } from "../../feed/blank";
import { useFeed, useHistory, useNow, useOutages, usePaused } from "../../feed/live";
import { hides } from "../../feed/outages";
import { freshness, isStale, type PoolState } from "../../feed/reducer";
import type { Snapshot } from "../../feed/types";
import { moment } from "../../lib/format";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { Backends } from "./Backends";
import { Charts } from "./Charts";
import { Entitlements } from "./Entitlements";
import { Headline } from "./Headline";
import { Losses } from "./Losses";
import { limitsOf } from "./verdict";
import { Strategy } from "./Strategy";
import { Tiers } from "./Tiers";

const Welcome = lazy(() => import("../welcome/Welcome").then((page) => ({ default: page.Welcome })));

function PauseButton() {
  const [paused, setPaused] = usePaused();
  return (
    <button type="button" className="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>
      <Icon name={paused ? "play" : "pause"} />
      {paused ? "Resume" : "Pause"}
    </button>
  );
}

/** The whole screen for figures and charts. Escape, or the button, leaves. */
function WallButton({ wall, onChange }: { wall: boolean; onChange: (wall: boolean) => void }) {
  useEffect(() => {
    const left = () => {
      if (!document.fullscreenElement) onChange(false);
    };
    const key = (event: KeyboardEvent) => {
      if (event.key === "Escape") onChange(false);
    };
    if (!wall) return;
    document.addEventListener("fullscreenchange", left);
    document.addEventListener("keydown", key);
    return () => {
      document.removeEventListener("fullscreenchange", left);
      document.removeEventListener("keydown", key);
    };
  }, [wall, onChange]);
  const press = () => {
    if (wall) void document.exitFullscreen?.().catch(() => undefined);
    else void document.documentElement.requestFullscreen?.().catch(() => undefined); // without it the page's own size will do
    onChange(!wall);
  };
  return (
    <button type="button" className={`button ${wall ? "" : "hidden sm:inline-flex"}`} aria-pressed={wall} onClick={press}>
      {wall ? "Exit full screen" : "Full screen"}
    </button>
  );
}

const untouched = (pool: PoolState): boolean =>
  pool.complete &&
  !pool.snapshot.running &&
  !pool.snapshot.queue?.depth &&
  !pool.history.some((p) => p.running || p.depth || p.completed || p.refused || p.failed || p.cancelled);

function FirstRequest({ snapshot }: { snapshot: Snapshot }) {
  const line = `curl ${location.origin}/v1/chat/completions \\
  -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
  -d '{"model": "${snapshot.model ?? "MODEL"}", "messages": [{"role": "user", "content": "Hello"}]}'`;
  return (
    <section className="panel p-4">
      <h2 className="text-sm font-semibold">No request has reached this pool in the last minutes</h2>
      {user.role === "admin" && Object.keys(snapshot.entitlements ?? {}).length === 0 && (
        <p className="mt-1 text-sm">
          <Link className="link" to="/welcome">
            Give the first tenant a share and a key
          </Link>
          ; no tenant has an entitlement to this pool yet.
        </p>
      )}
      <p className="mt-1 text-sm text-soft">Put a key of one of its entitlements into KEY and send a request; it appears here within a second.</p>
      <pre className="mt-2 overflow-x-auto rounded-md bg-raised p-3 font-mono text-xs" tabIndex={0}>
        {line}
      </pre>
    </section>
  );
}

function Loading() {
  return (
    <div className="space-y-4" aria-hidden="true">
      <div className="grid grid-cols-2 gap-2 md:grid-cols-4 wide:grid-cols-8">
        {Array.from({ length: 8 }, (_, i) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: they are alike and never move
          <div key={i} className="skeleton h-22" />
        ))}
      </div>
      <div className="grid grid-cols-1 gap-2 md:grid-cols-2 xl:grid-cols-3">
        {Array.from({ length: 6 }, (_, i) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: they are alike and never move
          <div key={i} className="skeleton h-60" />
        ))}
      </div>
    </div>
  );
}

function NoPools() {
  if (user.role === "admin")
    return (
      <Suspense fallback={<Loading />}>
        <Welcome />
      </Suspense>
    );
  return (
    <Empty title="No pools yet">
      <p>A pool is one model behind one or more vLLM servers. Once there is one, this page shows what waits, what runs and how well SLOs are met.</p>
      <p>{user.staff ? "An administrator can add the first one from this page, step by step." : "None of your tenants has an entitlement to a pool. An administrator can add one."}</p>
    </Empty>
  );
}

/** What happens now, in one pool. */
export function Overview() {
  const feed = useFeed();
  const now = useNow();
  const [paused] = usePaused();
  const [query, setQuery] = useAddress();
  const names = [...new Set([...Object.keys(feed.pools), ...(feed.known ?? [])])].sort();
  const wanted = query.get("pool");
  const selected = wanted !== null && names.includes(wanted) ? wanted : (names.find((name) => feed.pools[name]) ?? names[0]);
  const pool = selected === undefined ? undefined : feed.pools[selected];
  useHistory(selected);
  const charted = useDeferredValue(pool); // the figures first, then in a task of their own the charts
  const outages = useOutages();
  const stale = !paused && isStale(freshness(feed, pool, now));
  const hidden = hides(outages, selected);
  // Nothing of a pool that cannot be seen is shown as if it were so now: its names stay, its figures go.
  const unknown = stale && pool ? unknownSince(hidden ?? { source: "leader", since: pool.snapshot.at }) : undefined;
  const shown = pool && (unknown ? blank(pool.snapshot) : pool.snapshot);
  const rules = useQuery({ queryKey: ["alerts", "rules"], queryFn: ({ signal }) => get<AlertRule[]>("alert-rules", {}, signal), enabled: user.role !== "member", staleTime: 60_000 });
  const limits = useMemo(() => limitsOf(rules.data, selected ?? ""), [rules.data, selected]);
  const wall = query.get("wall") === "1";
  const setWall = useCallback(
    (on: boolean) =>
      setQuery(
        (old) => {
          if (on) old.set("wall", "1");
          else old.delete("wall");
          return old;
        },
        { replace: true },
      ),
    [setQuery],
  );
  const select = (name: string) =>
    setQuery((old) => {
      old.set("pool", name);
      return old;
    });

  return (
    <div className={wall ? "fixed inset-0 z-30 overflow-auto bg-page p-4" : "contents"} data-wall={wall}>
      <div className="mb-3 flex min-h-8 flex-wrap items-center gap-x-4 gap-y-2">
        <title>Overview · Quartermaster</title>
        <h1 className="sr-only">Overview</h1>
        {selected !== undefined && <PoolSelect pools={names} selected={selected} onSelect={select} />}
        {pool && (
          <p className="flex min-w-0 gap-x-4 truncate text-xs text-faint">
            <span>
              model <span className="text-soft">{pool.snapshot.model}</span>
            </span>
            {shown?.policy && (
              <span>
                policy <span className="text-soft">{shown.policy}</span>
              </span>
            )}
            {shown?.leader && (
              <span className="hidden sm:inline" title={`epoch ${shown.epoch ?? "unknown"}`}>
                scheduler <span className="text-soft">{shown.leader}</span>
              </span>
            )}
            {pool.snapshot.scope === "own" && <span>your tenants only</span>}
          </p>
        )}
        <div className="ml-auto flex items-center gap-1">
          <ConnectionPill pool={pool} />
          <PauseButton />
          <WallButton wall={wall} onChange={setWall} />
        </div>
      </div>
      {wall && <Outages />}
      {pool && shown && selected !== undefined ? (
        <div data-testid="figures" data-stale={stale} className={`space-y-5 transition-[filter,opacity] ${stale ? "grayscale" : ""}`}>
          {!unknown && <Losses snapshot={shown} />}
          <Headline snapshot={shown} history={pool.history} unknown={unknown} limits={limits} />
          {!unknown && untouched(pool) && <FirstRequest snapshot={pool.snapshot} />}
          {unknown && <p className="text-sm text-soft">The charts end at {moment(pool.snapshot.at)}; what happened since then is unknown.</p>}
          {charted && <Charts key={charted.snapshot.pool} snapshot={charted.snapshot} history={charted.history} wall={wall} />}
          {!wall && user.role !== "member" && <Strategy pool={pool.snapshot.pool} />}
          {!wall && <Tiers snapshot={shown} />}
          {!wall && <Entitlements snapshot={shown} />}
          <Backends snapshot={shown} unknown={unknown} />
        </div>
      ) : hidden || outages.some(({ source }) => source === "database") ? (
        // Opened while nobody could say what happens here.
        <div data-testid="figures" data-stale={true} className="space-y-5">
          <Headline snapshot={{ pool: selected ?? "", seq: 0, at: 0 }} history={[]} unknown={unknownSince(hidden ?? outages[0])} />
          <Unknown what={selected === undefined ? "The list of pools" : `The state of pool ${selected}`} outage={hidden ?? outages[0]}>
            Charts, queue, slots, entitlements and replicas reappear automatically as soon as they can be read again.
          </Unknown>
          {!wall && user.role !== "member" && selected !== undefined && <Strategy pool={selected} />}
        </div>
      ) : feed.welcomed && feed.connection === "open" && names.length === 0 && !feed.expected ? (
        <NoPools />
      ) : (
        <Loading />
      )}
      <ConnectionNotice pool={pool} />
    </div>
  );
}
