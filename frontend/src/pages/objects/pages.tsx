import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "react-router";
import type { Adapter, Backend, Entitlement, Key, Pool } from "../../api/catalog";
import { ApiError, get } from "../../api/client";
import { Badge } from "../../components/Badge";
import { Unknown, UnknownNow } from "../../components/Outages";
import { Empty } from "../../components/Shell";
import { useOutages } from "../../feed/live";
import { hides } from "../../feed/outages";
import { backendState, backendTones } from "../../lib/backend";
import { compact, count, percent, text } from "../../lib/format";
import { user } from "../../lib/page";
import { isWhole, useCatalog, useSnapshots } from "../tenants/data";
import { Ago, Failed, LastingFor, State, Unread, Waiting, When } from "../tenants/parts";
import { NoSuch } from "./NoSuch";
import { Facts, ObjectPage } from "./ObjectPage";

const POOLS = { to: "/pools", label: "Pools" };
const BACKENDS = { to: "/backends", label: "Backends" };
const enc = encodeURIComponent;
const staff = user.role !== "member";

/** One pool: its backends and shares, and its past. */
export function PoolPage() {
  const { pool: slug = "" } = useParams();
  const pools = useCatalog<Pool>("pools");
  const backends = useCatalog<Backend>("backends", { pool: slug }, staff);
  const entitlements = useCatalog<Entitlement>("entitlements", { pool: slug });
  const snapshot = useSnapshots().find((one) => one.pool === slug);
  const outage = hides(useOutages(), slug);
  if (pools.error) return <Failed error={pools.error} retry={() => void pools.refetch()} />;
  if (pools.isPending) return <Waiting />;
  const pool = pools.data.find((one) => one.slug === slug);
  if (!pool) return <NoSuch kind="pool" name={slug} list={POOLS} />;
  const own = backends.data ?? [];
  const shares = entitlements.data ?? [];
  return (
    <ObjectPage
      kind="pool"
      name={slug}
      list={POOLS}
      intro={pool.description}
      filters={{ pool: slug }}
      pool={slug}
      events={{ pool: slug }}
      actions={
        <>
          <Link className="button" to={`/?pool=${enc(slug)}`}>
            Live charts
          </Link>
          <Link className="button" to={`/queue?pool=${enc(slug)}`}>
            Queue
          </Link>
          {staff && (
            <Link className="button" to={`/policies?pool=${enc(slug)}`}>
              Policies and trials
            </Link>
          )}
          {user.role === "admin" && (
            <Link className="button" to={`/pools?${new URLSearchParams({ what: "pool", edit: slug })}`}>
              Edit
            </Link>
          )}
        </>
      }
    >
      {outage ? (
        <div className="mb-4">
          <Unknown what={`What pool ${slug} does now`} outage={outage} />
        </div>
      ) : (
        <Facts
          label="Now"
          facts={[
            { label: "Running", value: count(snapshot?.running), note: snapshot?.slots === undefined ? undefined : `of ${snapshot.slots} slots` },
            { label: "Waiting", value: count(snapshot?.queue?.depth) },
            { label: "In time, 1 min", value: text(percent(snapshot?.slo?.attainment)) },
            { label: "Policy", value: `${pool.policy}@${pool.policy_version}` },
            { label: "Context", value: compact(pool.max_model_len), note: "tokens" },
          ]}
        />
      )}
      <Facts
        label="Made of"
        facts={[
          { label: "Model", value: <Link className="link break-all" to={`/models/${enc(pool.model)}`}>{pool.model}</Link> },
          ...(staff ? [{ label: "Backends", value: own.length === 0 ? isWhole(backends) ? "none: nothing can run" : <Unread list={backends} /> : <Links to={own.map((row) => [`/backends/${enc(row.slug)}`, row.slug])} /> }] : []),
          { label: "Tenants", value: shares.length === 0 ? isWhole(entitlements) ? "none has a share" : <Unread list={entitlements} /> : <Links to={[...new Set(shares.map((row) => row.tenant))].map((name) => [`/tenants/${enc(name)}`, name])} /> },
        ]}
      />
    </ObjectPage>
  );
}

const MOST_LINKS = 8;

function Links({ to }: { to: readonly (readonly [string, string])[] }) {
  return (
    <span className="flex flex-wrap gap-x-2 text-sm font-normal">
      {to.slice(0, MOST_LINKS).map(([address, label]) => (
        <Link key={address} className="link" to={address}>
          {label}
        </Link>
      ))}
      {to.length > MOST_LINKS && <span className="text-faint">and {to.length - MOST_LINKS} more</span>}
    </span>
  );
}

/** One backend: what its engine says, and its past. */
export function BackendPage() {
  const { backend: slug = "" } = useParams();
  const backends = useCatalog<Backend>("backends", {}, staff);
  const live = useSnapshots().find((one) => one.backends?.[slug] !== undefined)?.backends?.[slug];
  const outages = useOutages();
  if (!staff)
    return (
      <Empty title="This page is for operators">
        <p>Backends serve every tenant. What your requests wait for is in the queue.</p>
      </Empty>
    );
  if (backends.error) return <Failed error={backends.error} retry={() => void backends.refetch()} />;
  if (backends.isPending) return <Waiting />;
  const row = backends.data.find((one) => one.slug === slug);
  if (!row) return <NoSuch kind="backend" name={slug} list={BACKENDS} />;
  const outage = hides(outages, row.pool);
  const state = backendState(row, live?.state);
  return (
    <ObjectPage
      kind="backend"
      name={slug}
      list={BACKENDS}
      state={outage === undefined && live !== undefined && live.unseen_since === undefined && <Badge tone={row.silent_since ? "bad" : backendTones[state]}>{state}</Badge>}
      intro={row.url}
      filters={{ backend: slug }}
      pool={row.pool}
      events={{ pool: row.pool, subject: slug }}
      actions={
        <Link className="button" to="/backends">
          Drain or edit
        </Link>
      }
    >
      {outage || live === undefined || live.unseen_since !== undefined ? (
        <div className="mb-4">
          <Unknown what={`What ${slug} does now`} outage={outage ?? (live?.unseen_since === undefined ? undefined : { source: "engine", since: live.unseen_since })}>
            {row.silent_since && (
              <>
                No answer <LastingFor since={row.silent_since} />
              </>
            )}
          </Unknown>
        </div>
      ) : (
        <Facts
          label="Now"
          facts={[
            { label: "Running", value: count(live.running), note: `of ${row.slots} slots` },
            { label: "KV cache", value: text(percent(live.kv_usage)), note: `of ${compact(row.kv_tokens)} tokens` },
            { label: "GPU", value: text(percent(live.gpu_util)) },
            { label: "Throughput", value: row.tokens_per_s ? compact(row.tokens_per_s) : "not measured", note: row.tokens_per_s ? "tok/s" : undefined },
            { label: "Pool", value: <Link className="link" to={`/pools/${enc(row.pool)}`}>{row.pool}</Link> },
          ]}
        />
      )}
    </ObjectPage>
  );
}

/** One key, by its public part: whose it is, what it opens, and its past. */
export function KeyPage() {
  const { key: id = "" } = useParams();
  const found = useQuery({ queryKey: ["catalog", "keys", id], queryFn: ({ signal }) => get<Key>(`keys/${enc(id)}`, {}, signal) });
  const tenant = found.data?.tenant;
  const used = useQuery({ queryKey: ["keys-used", tenant], queryFn: ({ signal }) => get<Record<string, string>>("keys/last-used", { tenant: tenant ?? "" }, signal), enabled: tenant !== undefined });
  if (found.error instanceof ApiError && found.error.status === 404) return <NoSuch kind="key" name={`qm-${id}`} list={{ to: "/tenants", label: "Tenants" }} />;
  if (found.error) return <Failed error={found.error} retry={() => void found.refetch()} />;
  if (!found.data) return <Waiting />;
  const row = found.data;
  const limit = (value: number | null, unit: string) => (value === null ? <span className="font-normal text-faint">no limit</span> : `${compact(value)} ${unit}`.trim());
  return (
    <ObjectPage
      kind="key"
      name={`${row.name} (qm-${row.id})`}
      list={{ to: `/tenants/${enc(row.tenant)}/keys`, label: `Keys of ${row.tenant}` }}
      state={<State state={row.status} />}
      filters={{ key_id: row.id }}
      events={{ pool: "", subject: row.id }}
      actions={
        <Link className="button" to={`/tenants/${enc(row.tenant)}/keys`}>
          Rotate or revoke
        </Link>
      }
    >
      <Facts
        label="Key"
        facts={[
          { label: "Tenant", value: <Link className="link" to={`/tenants/${enc(row.tenant)}`}>{row.tenant}</Link> },
          { label: "Opens", value: row.opens.length === 0 ? "nothing" : row.opens.join(", ") },
          { label: "User", value: row.user ? <Link className="link" to={`/users/${enc(row.user)}`}>{row.user}</Link> : "named by each request" },
          { label: "Last used", value: used.error ? <UnknownNow /> : used.data ? <Ago at={used.data[row.id]} none="not in the ledger" /> : "…" },
          { label: "Expires", value: <When at={row.expires_at} /> },
          { label: "Created", value: <When at={row.created_at} />, note: row.created_by ? `by ${row.created_by}` : undefined },
          { label: "Requests per minute", value: limit(row.requests_per_minute, "") },
          { label: "Tokens per minute", value: limit(row.tokens_per_minute, "tokens") },
          { label: "Concurrent requests", value: limit(row.concurrency, "requests") },
        ]}
      />
    </ObjectPage>
  );
}

/** One model name that clients send: what serves it, and its past. */
export function ModelPage() {
  const { "*": name = "" } = useParams();
  const pools = useCatalog<Pool>("pools");
  const adapters = useCatalog<Adapter>("adapters");
  const error = pools.error ?? adapters.error;
  if (error) return <Failed error={error} retry={() => void Promise.all([pools.refetch(), adapters.refetch()])} />;
  if (!pools.data || !adapters.data) return <Waiting />;
  const adapter = adapters.data.find((one) => one.model === name);
  const pool = pools.data.find((one) => one.model === name || one.aliases.includes(name) || one.slug === adapter?.pool);
  return (
    <ObjectPage kind="model" name={name} list={POOLS} filters={{ model: name }} pool={pool?.slug}>
      <Facts
        label="Model"
        facts={
          pool
            ? [
                { label: "Served by", value: <Link className="link" to={`/pools/${enc(pool.slug)}`}>{pool.slug}</Link> },
                { label: "Kind", value: adapter ? `adapter ${adapter.slug}` : pool.model === name ? "the pool's model" : `alias of ${pool.model}` },
                { label: "Adapters", value: adapters.data.filter((one) => one.pool === pool.slug).map((one) => one.model).join(", ") || "none" },
                { label: "Context", value: compact(pool.max_model_len), note: "tokens" },
              ]
            : [{ label: "Served by", value: "no pool that you can see", note: "it may be a project's name for another model" }]
        }
      />
    </ObjectPage>
  );
}

/** One user of a tenant, as requests or keys name it. */
export function UserPage() {
  const { user: name = "" } = useParams();
  return <ObjectPage kind="user" name={name} list={{ to: "/usage?group=user", label: "Usage by user" }} intro="A user as named by requests or, where they name none, by their key." filters={{ user: name }} />;
}
