import type { ReactNode } from "react";
import { Link } from "react-router";
import type { Amounts, Backend, Pool } from "../../api/catalog";
import { slugOf, type Values } from "../../components/form/form";
import { Icon } from "../../components/icons";
import { Meter } from "../../components/Meter";
import { Segmented } from "../../components/Segmented";
import type { Column } from "../../components/Table";
import { compact, count, NONE } from "../../lib/format";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { asleep } from "../overview/verdict";
import { isWhole, useCatalog, useSnapshots } from "./data";
import { Named, Unread } from "./parts";
import { Fleet } from "./Fleet";
import { promise } from "./promise";
import { Resource } from "./Resource";
import { poolSpecs } from "./specs";

const staff = user.role === "admin" || user.role === "operator";

/** How much of a dimension is promised: a figure over what there is, and what the planner may bring it to. */
function Promised({ pool, dimension, label }: { pool: Pool; dimension: keyof Amounts; label: string }) {
  const { given, now, most } = promise(pool, dimension);
  const whole = most ?? now;
  return (
    <span className="flex items-center justify-end gap-2">
      <Meter ratio={whole ? given / whole : undefined} label={`${label} reserved in ${pool.slug}`} tone={whole && given > whole ? "warn" : "plain"} className="w-12" />
      <span className="min-w-16">
        {compact(given)} <span className="text-faint">/ {now === undefined ? NONE : compact(now)}</span>
        {most !== undefined && (
          <span className="block text-2xs text-faint" title={`The limit for reservations: what the planner may provision with at most ${pool.max_replicas} replicas.`}>
            up to {compact(most)}
          </span>
        )}
      </span>
    </span>
  );
}

/** A pool is called after its model until someone writes another name. */
const follow = (values: Values, changed: string, written: ReadonlySet<string>): Values =>
  changed === "model" && !written.has("slug") ? { ...values, slug: slugOf((values.model ?? "").split("/").at(-1) ?? "") } : values;

const VIEWS = [
  { value: "now", label: "Now" },
  { value: "setup", label: "Set up" },
] as const;

/** The pools: how each stands now, or how it is set up. */
export function Pools() {
  const [query, setQuery] = useAddress();
  // A link to a form opens it wherever it comes from.
  const setup = query.get("show") === "setup" || query.has("new") || query.has("edit");
  const views = (
    <div className="mb-3">
      <Segmented
        label="Shown"
        value={setup ? "setup" : "now"}
        options={VIEWS}
        onChange={(value) =>
          setQuery((old) => {
            if (value === "setup") old.set("show", "setup");
            else for (const name of ["show", "new", "what", "edit"]) old.delete(name);
            return old;
          })
        }
      />
    </div>
  );
  if (setup) return <PoolSetup views={views} />;
  return (
    <section aria-labelledby="fleet-title">
      <title>Pools · Quartermaster</title>
      <div className="mb-3 flex flex-wrap items-end justify-between gap-x-6 gap-y-2">
        <div className="min-w-0">
          <h1 id="fleet-title" className="text-lg font-semibold tracking-tight">
            Pools
          </h1>
          <p className="max-w-4xl text-sm text-soft">Every pool now, the worst first: one model served by a group of replicas.</p>
        </div>
        {user.role === "admin" && (
          <Link className="button-primary gap-1.5" to="/pools?show=setup&new=pool">
            <Icon name="plus" />
            New pool
          </Link>
        )}
      </div>
      {views}
      <Fleet />
    </section>
  );
}

/** Models and the capacity behind them. */
function PoolSetup({ views }: { views: ReactNode }) {
  const read = useCatalog<Backend>("backends", {}, staff);
  const backends = read.data ?? [];
  const live = new Map(useSnapshots().map((snapshot) => [snapshot.pool, snapshot]));
  const columns: Column<Pool>[] = [
    {
      label: "Pool",
      by: (row) => row.slug,
      className: "max-w-56",
      cell: (row) => <Named row={row} to={`/pools/${row.slug}`} />,
    },
    {
      label: "Model",
      by: (row) => row.model,
      className: "max-w-60",
      cell: (row) => (
        <>
          <span className="block truncate" title={row.model}>
            {row.model}
          </span>
          {row.aliases.length > 0 && <span className="block truncate text-2xs text-faint">also {row.aliases.join(", ")}</span>}
        </>
      ),
    },
    ...(staff
      ? ([
          {
            label: "Backends",
            by: (row) => backends.filter((b) => b.pool === row.slug).length,
            cell: (row) => {
              const own = backends.filter((b) => b.pool === row.slug);
              const silent = own.filter((b) => b.silent_since).length;
              const wakes = live.get(row.slug)?.wakes_in_s;
              if (own.length === 0 && !isWhole(read)) return <Unread list={read} />;
              return own.length === 0 ? (
                wakes === undefined ? (
                  <span className="text-warn">none: nothing can run</span>
                ) : (
                  <span className="text-soft">{asleep(wakes, live.get(row.slug)?.queue?.depth)}</span>
                )
              ) : (
                <>
                  {own.length}
                  {silent > 0 && <span className="text-warn">, {silent} not answering</span>}
                </>
              );
            },
          },
        ] satisfies Column<Pool>[])
      : []),
    {
      label: "Running / slots",
      right: true,
      by: (row) => live.get(row.slug)?.running,
      cell: (row) => (
        <>
          {count(live.get(row.slug)?.running)} <span className="text-faint">/ {count(row.slots)}</span>
        </>
      ),
    },
    { label: "Waiting", right: true, by: (row) => live.get(row.slug)?.queue?.depth, cell: (row) => count(live.get(row.slug)?.queue?.depth) },
    ...(staff
      ? ([
          { label: "Slots reserved", right: true, by: (row) => row.promised?.slots, cell: (row) => <Promised pool={row} dimension="slots" label="Slots" /> },
          { label: "KV reserved", unit: "tokens", right: true, by: (row) => row.promised?.kv_tokens, cell: (row) => <Promised pool={row} dimension="kv_tokens" label="KV cache" /> },
        ] satisfies Column<Pool>[])
      : []),
    { label: "Context", unit: "tokens", right: true, by: (row) => row.max_model_len, cell: (row) => compact(row.max_model_len) },
    { label: "Policy", by: (row) => row.policy, cell: (row) => `${row.policy}@${row.policy_version}` },
    ...(staff ? ([{ label: "Scaling", by: (row) => row.scaling_mode, cell: (row) => (row.scaling_mode === "off" ? <span className="text-faint">off</span> : `${row.scaling_mode}, ${row.min_replicas} to ${row.max_replicas}`) }] satisfies Column<Pool>[]) : []),
  ];
  return <Resource<Pool> what="pool" title="Pools" intro="One model served by a group of backends." path="pools" columns={columns} specs={() => poolSpecs} id={(row) => row.slug} empty="No pool yet." follow={follow} effects above={views} />;
}
