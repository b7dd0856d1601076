import { useMemo, useState } from "react";
import { Link, useNavigate } from "react-router";
import type { Entitlement, IssuedKey, Made, Pool, Tenant, Tier } from "../../api/catalog";
import { Badge } from "../../components/Badge";
import { ResourceForm } from "../../components/form/ResourceForm";
import { Icon } from "../../components/icons";
import { Meter } from "../../components/Meter";
import { notify } from "../../components/Notices";
import { Sheet } from "../../components/Sheet";
import { Table, type Column } from "../../components/Table";
import { compact, count, percent, text } from "../../lib/format";
import { hold } from "../../lib/keyring";
import { user } from "../../lib/page";
import { isWhole, useCatalog, useRefresh, useSnapshots } from "./data";
import { isLow, judgedOf } from "../overview/verdict";
import { EffectsPanel } from "./EffectsPanel";
import { attainment, leftOut, unseen, useByTenant, type LiveUse } from "./live";
import { Failed, Secret, State, Unread, Waiting, Without } from "./parts";
import { mayWrite, useSheet } from "./Resource";
import { firstFollow, firstSpecs, options } from "./specs";

interface Row {
  tenant: Tenant;
  use: LiveUse | undefined;
  entitlements: Entitlement[];
  /** The list that they are from, where more of them may be missing. */
  unread: { isPending: boolean; error: unknown } | undefined;
  /** Its pools that are in no figure of its row. */
  unseen: string[];
  /** And those of which its row was not sent. */
  leftOut: string[];
}

const columns: Column<Row>[] = [
  {
    label: "Tenant",
    by: (row) => row.tenant.slug,
    className: "max-w-64",
    cell: ({ tenant, unseen: missing, leftOut: rest }) => (
      <>
        <Link to={`/tenants/${tenant.slug}`} className="link inline-block wrap-anywhere">
          {tenant.slug}
        </Link>
        {tenant.paused_since && (
          <span className="ml-2">
            <Badge tone="warn" title={tenant.paused_reason}>
              paused
            </Badge>
          </span>
        )}
        {tenant.description && <span className="block truncate text-2xs font-normal text-faint" title={tenant.description}>{tenant.description}</span>}
        <Without pools={missing} leftOut={rest} />
      </>
    ),
  },
  {
    label: "Entitlements",
    by: (row) => row.entitlements.length,
    cell: ({ entitlements, unread }) =>
      entitlements.length === 0 ? (
        unread ? (
          <Unread list={unread} />
        ) : (
          <span className="text-faint">none: it cannot send requests</span>
        )
      ) : (
        <span className="flex flex-wrap gap-x-3 gap-y-0.5">
          {entitlements.map((e) => (
            <span key={e.slug} className="inline-flex items-center gap-1.5 whitespace-nowrap">
              {e.pool} <span className="text-faint">{e.tier}</span>
              {e.state !== "bound" && <State state={e.state} reason={e.state_reason} />}
            </span>
          ))}
        </span>
      ),
  },
  {
    label: "Running",
    right: true,
    by: (row) => row.use?.running,
    cell: ({ tenant, use }) => (
      <span className="flex items-center justify-end gap-2">
        <Meter ratio={use?.limit ? use.running / use.limit : undefined} label={`Running of ${tenant.slug}'s limit`} className="w-14" />
        <span className="min-w-14">
          {count(use?.running)}
          <span className="text-faint"> / {count(use?.limit || undefined)}</span>
        </span>
      </span>
    ),
  },
  { label: "Waiting", right: true, by: (row) => row.use?.waiting, cell: ({ use }) => count(use?.waiting) },
  { label: "Tokens", unit: "per s", right: true, by: (row) => row.use?.tokensPerS, cell: ({ use }) => (use ? compact(use.tokensPerS) : "–") },
  { label: "Refused", unit: "1 min", right: true, by: (row) => row.use?.refused, cell: ({ use }) => count(use?.refused) },
  {
    label: "Attainment",
    unit: "1 min",
    right: true,
    by: (row) => attainment(row.use),
    cell: ({ use }) => (
      <>
        <span className={isLow(attainment(use)) ? "font-medium text-bad" : ""}>{text(percent(attainment(use)))}</span>
        {use && judgedOf(use) && <span className="block text-xs text-faint">{judgedOf(use)}</span>}
      </>
    ),
  },
];

/** A tenant with its first share and key: one form, one transaction. */
export function NewTenant({ onMade, onClose }: { onMade: (made: Made) => void; onClose?: () => void }) {
  const pools = useCatalog<Pool>("pools").data;
  const tiers = useCatalog<Tier>("tiers").data;
  if (!pools || !tiers) return <div className="p-5"><Waiting /></div>;
  if (pools.length === 0)
    return (
      <div className="p-5 text-sm text-soft">
        There is no pool for a tenant to use yet. <Link className="link" to="/welcome">Add the first backend</Link>, then come back.
      </div>
    );
  const tier = tiers.find((one) => one.slug === "standard") ?? tiers[0];
  return (
    <ResourceForm<Made>
      specs={firstSpecs(options(pools.map((p) => p.slug)), tiers.map((t) => ({ value: t.slug, label: `${t.slug}: ${t.service_class}` })), { pool: pools[0]!.slug, tier: tier?.slug })}
      method="POST"
      path="setup"
      submit="Create tenant and key"
      follow={firstFollow}
      effects={(found, pending) => <EffectsPanel effects={found} pending={pending} own={found?.changes.find((c) => c.kind === "entitlement")?.object} />}
      onSaved={onMade}
      onCancel={onClose}
    />
  );
}

/** Who shares the GPUs, and what each uses now. */
export function TenantList() {
  const navigate = useNavigate();
  const refresh = useRefresh();
  const sheet = useSheet("tenant");
  const [made, setMade] = useState<{ key: IssuedKey; tenant: string; model?: string } | null>(null);
  const [filter, setFilter] = useState("");
  const { data: tenants, count: all, error, isPending, refetch } = useCatalog<Tenant>("tenants");
  const entitlements = useCatalog<Entitlement>("entitlements");
  const pools = useCatalog<Pool>("pools").data;
  const snapshots = useSnapshots();
  const uses = useByTenant(snapshots);
  const partly = snapshots.filter((snapshot) => snapshot.left_out?.tenants).map((snapshot) => snapshot.pool);
  const word = filter.trim().toLowerCase();
  const shares = useMemo(() => {
    const found = new Map<string, Entitlement[]>();
    for (const one of entitlements.data ?? []) found.set(one.tenant, [...(found.get(one.tenant) ?? []), one]);
    return found;
  }, [entitlements.data]);
  const rows = (tenants ?? [])
    .filter((tenant) => `${tenant.slug} ${tenant.description}`.toLowerCase().includes(word))
    .map((tenant): Row => {
      const own = shares.get(tenant.slug) ?? [];
      const use = uses.get(tenant.slug);
      return { tenant, use, entitlements: own, unread: isWhole(entitlements) ? undefined : entitlements, unseen: use ? unseen(own.map((e) => e.pool), snapshots) : [], leftOut: use ? leftOut(tenant.slug, own.map((e) => e.pool), snapshots) : [] };
    });
  return (
    <section aria-labelledby="tenants-title">
      <title>Tenants · Quartermaster</title>
      <div className="mb-3 flex flex-wrap items-end justify-between gap-x-6 gap-y-2">
        <div className="min-w-0">
          <h1 id="tenants-title" className="text-lg font-semibold tracking-tight">
            Tenants {tenants && <span className="font-normal text-faint">{all.toLocaleString("en")}</span>}
          </h1>
          <p className="max-w-4xl text-sm text-soft">{user.role === "member" ? "The teams you belong to, and their current use." : "Organisations and teams that share the GPUs, and their current use."}</p>
          {partly.length > 0 && <p className="text-xs text-faint">Figures are of the busiest tenants of {partly.join(", ")}; a tenant's page has its own.</p>}
        </div>
        <div className="flex flex-wrap items-center gap-2">
          <input type="search" aria-label="Find a tenant" placeholder="Find a tenant" className="field h-9 w-44" value={filter} onChange={(event) => setFilter(event.target.value)} />
          {mayWrite && (
            <button type="button" className="button-primary gap-1.5" onClick={sheet.openNew}>
              <Icon name="plus" />
              New tenant
            </button>
          )}
        </div>
      </div>
      {error ? (
        <Failed error={error} retry={() => void refetch()} />
      ) : isPending ? (
        <Waiting />
      ) : (
        <Table
          label="Tenants"
          rows={rows}
          of={tenants.length < all ? all : undefined}
          columns={columns}
          id={(row) => row.tenant.slug}
          empty={word ? "No tenant's name or description matches." : mayWrite ? "No tenants yet. Creating one also creates its entitlement and key." : "You are not a member of any tenant. An administrator can add you."}
        />
      )}
      {mayWrite && sheet.isNew && (
        <Sheet title="New tenant" subtitle="Creates the tenant with its first entitlement and key." onClose={sheet.close}>
          <NewTenant
            onClose={sheet.close}
            onMade={({ tenant, entitlement, key }) => {
              hold(key!.key, `${key!.name}, ${tenant!.slug}`);
              setMade({ key: key!, tenant: tenant!.slug, model: pools?.find((pool) => pool.slug === entitlement?.pool)?.model });
              notify(`${tenant!.slug} was created.`);
              sheet.close();
              void refresh();
            }}
          />
        </Sheet>
      )}
      {made && <Secret issued={made.key} model={made.model} onClose={() => void navigate(`/tenants/${made.tenant}`)} />}
    </section>
  );
}
