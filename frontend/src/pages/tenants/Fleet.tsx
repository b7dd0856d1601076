import { memo, useMemo } from "react";
import { Link } from "react-router";
import type { Pool } from "../../api/catalog";
import { ceiling } from "../../charts/columns";
import { Sparkline } from "../../charts/Sparkline";
import { Badge } from "../../components/Badge";
import { Meter } from "../../components/Meter";
import { unseenSince } from "../../components/Outages";
import { Table, type Column } from "../../components/Table";
import { compact, count, NONE, percent, seconds, text } from "../../lib/format";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { isLow, late, ms } from "../overview/verdict";
import { useCatalog } from "./data";
import { fits, fleetRow, LEVELS, levelTones, replicasText, standingOf, tally, tiersOf, type FleetRow } from "./fleet";
import { Failed, Waiting } from "./parts";
import { hiddenNow } from "./standings";
import { useJudged } from "./StandingsNow";

const staff = user.role === "admin" || user.role === "operator";
const TIERS = 3;

/** A line of the last five minutes with the two ends of its scale. */
function Scaled({ row }: { row: FleetRow }) {
  const top = ceiling(Math.max(0, ...row.spark.map((value) => value ?? 0)));
  if (row.spark.every((value) => value === null)) return null;
  return (
    <span className="flex h-7 items-stretch gap-1" title="The last five minutes">
      <Sparkline values={row.spark} top={top} className="h-full w-20 text-accent" />
      <span className="flex w-9 flex-col justify-between text-left text-2xs leading-3 text-faint">
        <span>{compact(top)}</span>
        <span>0</span>
      </span>
    </span>
  );
}

const columns: Column<FleetRow>[] = [
  {
    label: "Pool",
    by: (row) => row.pool,
    className: "max-w-52",
    cell: (row) => (
      <>
        <Link className="link" to={`/pools/${encodeURIComponent(row.pool)}`}>
          {row.pool}
        </Link>
        <span className="block truncate text-2xs font-normal text-faint" title={row.model}>
          {row.model}
        </span>
      </>
    ),
  },
  {
    label: "State",
    by: (row) => LEVELS.indexOf(row.level),
    className: "max-w-72",
    cell: (row) => (
      <div data-level={row.level} data-unknown={row.level === "unknown" || undefined}>
        <Badge tone={levelTones[row.level]}>{row.level}</Badge>
        {/* Beside the badge, so that the row is as high as before. */}
        {row.was && (
          <span className="ml-1.5 text-2xs text-faint" title={`Before: ${row.was.why}`}>
            until {row.was.until}, now:
          </span>
        )}
        <span className="block text-2xs whitespace-normal text-soft">{row.why}</span>
      </div>
    ),
  },
  {
    label: "In time",
    unit: "1 min",
    right: true,
    by: (row) => row.snapshot?.slo?.attainment,
    cell: (row) => (
      <>
        <span className={isLow(row.snapshot?.slo?.attainment) ? "font-medium text-bad" : ""}>{text(percent(row.snapshot?.slo?.attainment))}</span>
        {tiersOf(row.snapshot).slice(0, TIERS).map(([name, tier]) => (
          <span key={name} className={`block text-2xs ${isLow(tier.attainment) ? "text-bad" : "text-faint"}`}>
            {name} {text(percent(tier.attainment))}
          </span>
        ))}
        {tiersOf(row.snapshot).length > TIERS && <span className="block text-2xs text-faint">and {tiersOf(row.snapshot).length - TIERS} more tiers</span>}
      </>
    ),
  },
  {
    label: "Worst SLO",
    unit: "p95",
    right: true,
    by: (row) => (row.worst?.ms === undefined ? undefined : row.worst.ms / 1000 / row.worst.s),
    cell: (row) =>
      row.worst === undefined ? (
        NONE
      ) : (
        <>
          <span className={late(row.worst) ? "font-medium text-bad" : ""}>{row.worst.ms === undefined ? NONE : ms(row.worst.ms)}</span>
          <span className="block text-2xs text-faint">
            {row.worst.tier} {row.worst.of}, at most {text(seconds(row.worst.s))}
          </span>
        </>
      ),
  },
  {
    label: "Waiting",
    right: true,
    by: (row) => row.snapshot?.queue?.depth,
    cell: (row) => (
      <>
        {count(row.snapshot?.queue?.depth)}
        {(row.snapshot?.queue?.depth ?? 0) > 0 && <span className="block text-2xs text-faint">oldest {text(seconds(row.snapshot?.queue?.oldest_s))}</span>}
      </>
    ),
  },
  {
    label: "Running / slots",
    right: true,
    by: (row) => row.snapshot?.running,
    cell: (row) => (
      <span className="inline-block min-w-20">
        {count(row.snapshot?.running)} <span className="text-faint">/ {count(row.room?.all)}</span>
        <Meter ratio={row.room?.all && row.snapshot?.running !== undefined ? row.snapshot.running / row.room.all : undefined} label={`Slots of ${row.pool}`} className="mt-1" />
      </span>
    ),
  },
  {
    label: "KV reserved",
    right: true,
    by: (row) => row.kv,
    cell: (row) => (
      <span className="inline-block min-w-14">
        {text(percent(row.kv))}
        <Meter ratio={row.kv} label={`KV cache of ${row.pool}`} tone={row.kv !== undefined && row.kv > 0.97 ? "warn" : "plain"} className="mt-1" />
      </span>
    ),
  },
  {
    label: "Tokens",
    unit: "tok/s",
    right: true,
    by: (row) => row.tokens,
    cell: (row) => (
      <span className="inline-flex items-center gap-2">
        <span className="min-w-10">{count(row.tokens)}</span>
        <Scaled row={row} />
      </span>
    ),
  },
  ...(staff
    ? ([
        {
          label: "Replicas",
          by: (row) => (row.replicas ? row.replicas.ready / Math.max(1, row.replicas.all) : undefined),
          className: "max-w-40",
          cell: (row) => (row.replicas === undefined ? NONE : row.replicas.all === 0 ? <span className={row.level === "asleep" ? "text-soft" : "text-bad"}>none</span> : <span className={row.replicas.ejected + row.replicas.other ? "text-warn" : ""}>{replicasText(row.replicas)}</span>),
        },
      ] satisfies Column<FleetRow>[])
    : []),
];

const Rows = memo(function Rows({ rows, empty }: { rows: readonly FleetRow[]; empty: string }) {
  return <Table label="Pools now" rows={rows} columns={columns} id={(row) => row.pool} empty={empty} className="max-h-[78dvh]" sortedBy={{ column: 1, descending: false }} />;
});

/** Every pool now: how it stands, and why; the worst first. */
export function Fleet() {
  const { data, error, isPending, refetch } = useCatalog<Pool>("pools");
  const [query, setQuery] = useAddress();
  const typed = query.get("q") ?? "";
  const { now, feed, outages, pools } = useJudged();
  // Once a second, however many pools there are, and not with each change of each of them.
  const all = useMemo(() => {
    const models = new Map([...Object.keys(feed.pools).map((name) => [name, feed.pools[name]!.snapshot.model ?? ""] as const), ...(data ?? []).map((pool) => [pool.slug, pool.model] as const)]);
    const standing = new Map(pools.map((one) => [one.pool, one]));
    return [...models].map(([slug, model]) => {
      const hidden = hiddenNow(feed, outages, slug, now);
      return fleetRow(standing.get(slug) ?? { pool: slug, ...standingOf(undefined, hidden && unseenSince(hidden), {}) }, model, feed.pools[slug]);
    });
  }, [now, feed, outages, pools, data]);
  const rows = useMemo(() => all.filter((row) => fits(row, typed)), [all, typed]);
  const type = (text: string) =>
    setQuery(
      (old) => {
        if (text) old.set("q", text);
        else old.delete("q");
        return old;
      },
      { replace: true },
    );
  if (isPending && all.length === 0) return <Waiting />;
  return (
    <>
      {error && <Failed error={error} retry={() => void refetch()} />}
      <div className="mb-2 flex flex-wrap items-center gap-2">
        <label className="flex items-center gap-2 text-sm">
          <span className="text-faint">Filter</span>
          <input className="field w-56" type="search" value={typed} placeholder="name, model or state" onChange={(event) => type(event.target.value)} />
        </label>
        <ul className="flex flex-wrap gap-1.5" aria-label="Pools by state">
          {tally(all).map(([level, n]) => (
            <li key={level}>
              <button type="button" className="rounded hover:opacity-80" aria-pressed={typed === level} onClick={() => type(typed === level ? "" : level)}>
                <Badge tone={levelTones[level]}>
                  {n} {level}
                </Badge>
              </button>
            </li>
          ))}
        </ul>
      </div>
      <Rows rows={rows} empty={all.length === 0 ? "No pool yet." : "No pool matches the filter."} />
    </>
  );
}
