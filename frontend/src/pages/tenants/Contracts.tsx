import type { Entitlement, Pool, Price, SloRow, Tier } from "../../api/catalog";
import type { Column } from "../../components/Table";
import { count, NONE, seconds, text, price } from "../../lib/format";
import { isWhole, useCatalog, useSnapshots } from "./data";
import { tbtWhys } from "./fleet";
import { Unread, When } from "./parts";
import { Resource } from "./Resource";
import { options, priceSpecs, sloSpecs, tierSpecs } from "./specs";

const time = (s: number | null): string => (s === null ? NONE : text(seconds(s)));

function Name({ slug, description }: { slug: string; description: string }) {
  return (
    <>
      {slug}
      {description && <span className="block truncate text-2xs font-normal text-faint">{description}</span>}
    </>
  );
}

/** Contract templates. */
export function Tiers() {
  const slos = useCatalog<SloRow>("slos").data ?? [];
  const entitlements = useCatalog<Entitlement>("entitlements");
  const used = (slug: string): number | undefined => (isWhole(entitlements) ? entitlements.data?.filter((e) => e.tier === slug).length : undefined);
  const columns: Column<Tier>[] = [
    { label: "Tier", by: (row) => row.slug, cell: (row) => <Name {...row} />, className: "max-w-72" },
    { label: "Service class", by: (row) => row.service_class, cell: (row) => row.service_class },
    { label: "SLO", by: (row) => row.slo, cell: (row) => row.slo },
    { label: "Rank", right: true, by: (row) => row.rank, cell: (row) => row.rank },
    { label: "Weight", right: true, by: (row) => row.weight, cell: (row) => row.weight },
    { label: "Over its limit", by: (row) => row.over_limit, cell: (row) => (row.over_limit === "refuse" ? "refused" : "waits") },
    { label: "Queue limit", right: true, by: (row) => row.queue_limit, cell: (row) => count(row.queue_limit) },
    { label: "Maximum wait", right: true, by: (row) => row.max_wait_s, cell: (row) => time(row.max_wait_s) },
    { label: "Entitlements", right: true, by: (row) => used(row.slug), cell: (row) => used(row.slug) ?? <Unread list={entitlements} /> },
  ];
  return <Resource<Tier> what="tier" title="Tiers" intro="Contract templates: service class, SLO and queueing rule. A change applies to every entitlement of the tier at once." path="tiers" columns={columns} specs={() => tierSpecs(options(slos.map((s) => s.slug)))} id={(row) => row.slug} empty="No tier yet." effects />;
}

/** Promises about time. */
export function Slos() {
  const tiers = useCatalog<Tier>("tiers");
  const snapshots = useSnapshots();
  const missed = (slo: string) => tbtWhys(snapshots, (tiers.data ?? []).filter((t) => t.slo === slo).map((t) => t.slug));
  const columns: Column<SloRow>[] = [
    { label: "SLO", by: (row) => row.slug, cell: (row) => <Name {...row} />, className: "max-w-56" },
    { label: "Kind", by: (row) => row.ttlt_s, cell: (row) => (row.ttlt_s === null ? "interactive" : "non-interactive") },
    { label: "TTFT", right: true, by: (row) => row.ttft_s, cell: (row) => time(row.ttft_s) },
    {
      label: "TBT",
      right: true,
      by: (row) => row.tbt_s,
      cell: (row) => (
        <>
          {time(row.tbt_s)}
          {missed(row.slug).map((why) => (
            <span key={why} className="ml-auto block max-w-72 whitespace-normal text-2xs text-warn">
              {why}
            </span>
          ))}
        </>
      ),
    },
    { label: "TTLT", right: true, by: (row) => row.ttlt_s, cell: (row) => time(row.ttlt_s) },
    { label: "Tiers", cell: (row) => (tiers.data ?? []).filter((t) => t.slo === row.slug).map((t) => t.slug).join(", ") || (isWhole(tiers) ? <span className="text-faint">none</span> : <Unread list={tiers} />) },
  ];
  return <Resource<SloRow> what="SLO" title="SLOs" intro="Targets for the time to the first token and between tokens, or to the last token." path="slos" columns={columns} specs={() => sloSpecs} id={(row) => row.slug} empty="No SLO yet." />;
}

const charged = (amount: string, currency: string) => (Number(amount) ? price(amount, currency) : <span className="text-faint">{NONE}</span>);

/** What use costs. */
export function Prices() {
  const pools = useCatalog<Pool>("pools").data ?? [];
  const columns: Column<Price>[] = [
    { label: "Pool", by: (row) => row.pool, cell: (row) => row.pool },
    { label: "Adapter", by: (row) => row.model, cell: (row) => row.model || <span className="text-faint">{NONE}</span> },
    { label: "From", by: (row) => row.valid_from, cell: (row) => <When at={row.valid_from} /> },
    { label: "Million input tokens", right: true, by: (row) => Number(row.per_million_input), cell: (row) => charged(row.per_million_input, row.currency) },
    { label: "Of them cached", right: true, by: (row) => Number(row.per_million_cached ?? row.per_million_input), cell: (row) => charged(row.per_million_cached ?? row.per_million_input, row.currency) },
    { label: "Million output tokens", right: true, by: (row) => Number(row.per_million_output), cell: (row) => charged(row.per_million_output, row.currency) },
    { label: "GPU second", right: true, by: (row) => Number(row.per_gpu_second), cell: (row) => charged(row.per_gpu_second, row.currency) },
    { label: "Reserved, used", unit: "GPU second", right: true, by: (row) => Number(row.per_reserved_used_second), cell: (row) => charged(row.per_reserved_used_second ?? "0", row.currency) },
    { label: "Reserved, idle", unit: "GPU second", right: true, by: (row) => Number(row.per_reserved_idle_second), cell: (row) => charged(row.per_reserved_idle_second ?? "0", row.currency) },
    { label: "Requests per GPU", right: true, by: (row) => row.slots_per_gpu, cell: (row) => row.slots_per_gpu },
  ];
  return <Resource<Price> what="price" title="Prices" intro="What use of a pool or adapter costs, from a given hour until its next price. What has been charged does not change: make a new price instead." path="prices" columns={columns} specs={() => priceSpecs(options(pools.map((p) => p.slug)))} id={(row) => String(row.id)} name={(row) => `${row.pool}'s price`} empty="No price: use is metered but not billed." />;
}
