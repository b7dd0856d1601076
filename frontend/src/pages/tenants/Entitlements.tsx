import type { Adapter, Entitlement, Pool, Project, Tier } from "../../api/catalog";
import { Meter } from "../../components/Meter";
import { slugOf, type Values } from "../../components/form/form";
import type { Column } from "../../components/Table";
import { compact, count, NONE, percent, rate, text } from "../../lib/format";
import { user } from "../../lib/page";
import { isLow } from "../overview/verdict";
import { shareText } from "../rows";
import { useCatalog, useSnapshotsOf } from "./data";
import { entitlementsOf } from "./live";
import { Named, State, When } from "./parts";
import { Resource } from "./Resource";
import { entitlementSpecs, options, withBurst } from "./specs";

/** What a tenant may use, and what it uses of that now. */
export function Entitlements({ tenant }: { tenant: string }) {
  const live = entitlementsOf(useSnapshotsOf(tenant));
  const pools = useCatalog<Pool>("pools").data ?? [];
  const tiers = useCatalog<Tier>("tiers").data ?? [];
  const projects = useCatalog<Project>("projects", { tenant }).data ?? [];
  const adapters = useCatalog<Adapter>("adapters").data ?? [];
  const columns: Column<Entitlement>[] = [
    {
      label: "Entitlement",
      by: (row) => row.slug,
      className: "max-w-56",
      cell: (row) => <Named row={row} />,
    },
    {
      label: "State",
      by: (row) => row.state,
      className: "max-w-64",
      cell: (row) => (
        <>
          <State state={row.state} />
          {row.state_reason && <span className="mt-0.5 block text-2xs text-warn">{row.state_reason}</span>}
        </>
      ),
    },
    {
      label: "Pool",
      by: (row) => row.pool,
      cell: (row) => (
        <>
          {row.pool}
          {row.adapter && <span className="block text-2xs text-faint">adapter {row.adapter}</span>}
        </>
      ),
    },
    { label: "Tier", by: (row) => row.tier, cell: (row) => row.tier },
    ...(projects.length > 0 ? [{ label: "Project", by: (row: Entitlement) => row.project, cell: (row: Entitlement) => row.project ?? <span className="text-faint">all</span> }] : []),
    {
      label: "Running / limit",
      right: true,
      by: (row) => live.get(row.slug)?.running,
      cell: (row) => {
        const running = live.get(row.slug)?.running;
        return (
          <span className="flex items-center justify-end gap-2">
            <Meter ratio={running === undefined ? undefined : running / row.concurrency} label={`Running of ${row.slug}'s limit`} className="w-14" />
            <span className="min-w-14">
              {count(running)}
              <span className="text-faint"> / {count(row.concurrency)}</span>
            </span>
          </span>
        );
      },
    },
    { label: "Waiting", right: true, by: (row) => live.get(row.slug)?.waiting, cell: (row) => count(live.get(row.slug)?.waiting) },
    {
      label: "Tokens / budget",
      unit: "per s",
      right: true,
      cell: (row) => {
        const tokens = live.get(row.slug)?.tokens_per_s;
        const used = tokens && (tokens.input ?? 0) + (tokens.output ?? 0);
        return (
          <>
            {used === undefined ? NONE : compact(used)}
            <span className="text-faint"> / {row.tokens_per_s ? compact(row.tokens_per_s) : "no limit"}</span>
          </>
        );
      },
    },
    { label: "KV share", unit: "tokens", right: true, by: (row) => row.kv_tokens, cell: (row) => (row.kv_tokens ? compact(row.kv_tokens) : <span className="text-faint">no limit</span>) },
    { label: "Debt", right: true, by: (row) => live.get(row.slug)?.debt, cell: (row) => rate(live.get(row.slug)?.debt) },
    ...(user.role === "member" ? [] : [{ label: "Share", unit: "of its class", right: true, by: (row: Entitlement) => live.get(row.slug)?.share, cell: (row: Entitlement) => shareText(live.get(row.slug)?.share) }]),
    { label: "Weight", right: true, by: (row) => live.get(row.slug)?.weight, cell: (row) => rate(live.get(row.slug)?.weight) },
    { label: "Attainment", right: true, by: (row) => live.get(row.slug)?.attainment, cell: (row) => <span className={isLow(live.get(row.slug)?.attainment) ? "font-medium text-bad" : ""}>{text(percent(live.get(row.slug)?.attainment))}</span> },
    { label: "Ends", by: (row) => row.valid_until, cell: (row) => <When at={row.valid_until} /> },
  ];
  const follow = (values: Values, changed: string, written: ReadonlySet<string>): Values => {
    const named = changed === "pool" && !written.has("slug") ? { ...values, slug: slugOf(`${tenant}-${values.pool ?? ""}`) } : values;
    return withBurst()(named, changed, written);
  };
  return (
    <Resource<Entitlement>
      what="entitlement"
      title="Entitlements"
      heading="h2"
      intro="Its shares of pools. A key opens one of these, or those of its project."
      path="entitlements"
      query={{ tenant }}
      columns={columns}
      specs={() => entitlementSpecs(options(pools.map((p) => p.slug)), tiers.map((t) => ({ value: t.slug, label: `${t.slug}: ${t.service_class}` })), options(projects.map((p) => p.slug)), adapters.map((a) => ({ value: a.slug, label: `${a.slug}: ${a.pool}` })))}
      id={(row) => row.slug}
      empty="No entitlement yet, so it cannot send requests."
      extra={(typed) => ({ ...typed, tenant })}
      follow={follow}
      effects
      own={(row) => row?.slug}
    />
  );
}
