import type { Adapter, Entitlement, Pool } from "../../api/catalog";
import type { Column } from "../../components/Table";
import { user } from "../../lib/page";
import { useCatalog, useSnapshots } from "./data";
import { Named, none } from "./parts";
import { Resource } from "./Resource";
import { adapterSpecs, options } from "./specs";

/** LoRA adapters: model names of their own on a pool's capacity. */
export function Adapters() {
  const pools = useCatalog<Pool>("pools").data ?? [];
  const entitlements = useCatalog<Entitlement>("entitlements").data;
  const snapshots = useSnapshots();
  /** On how many of its pool's backends it is loaded; undefined: nobody said. */
  const loaded = (row: Adapter): string | undefined => {
    const name = row.upstream_model || row.model;
    const states = Object.values(snapshots.find((snapshot) => snapshot.pool === row.pool)?.backends ?? {}).flatMap((backend) => backend.adapters?.[name] ?? []);
    const known = states.filter((state) => state !== "unknown");
    return known.length === 0 ? undefined : `${known.filter((state) => state === "loaded").length} of ${states.length}`;
  };
  // Where engines stand and what they have is the operators' business: members are told neither.
  const forStaff: Column<Adapter>[] = [
    { label: "Loaded", cell: (row) => loaded(row) ?? <span className="text-faint">unknown</span> },
    { label: "Source", className: "max-w-64", cell: (row) => (row.source ? <span className="block truncate" title={row.source}>{row.source}</span> : none) },
  ];
  const columns: Column<Adapter>[] = [
    {
      label: "Adapter",
      by: (row) => row.slug,
      className: "max-w-56",
      cell: (row) => <Named row={row} />,
    },
    { label: "Pool", by: (row) => row.pool, cell: (row) => row.pool },
    { label: "Model", by: (row) => row.model, className: "max-w-64", cell: (row) => <span className="block truncate" title={row.model}>{row.model}</span> },
    ...(user.role === "member" ? [] : forStaff),
    {
      label: "Entitlements",
      className: "max-w-64",
      cell: (row) => {
        const names = entitlements?.filter((e) => e.adapter === row.slug).map((e) => e.slug);
        return names === undefined ? "…" : names.length === 0 ? none : <span className="block truncate" title={names.join(", ")}>{names.join(", ")}</span>;
      },
    },
  ];
  return (
    <Resource<Adapter>
      what="adapter"
      title="Adapters"
      intro="LoRA adapters of pools' models. Each has a model name and entitlements of its own, and runs on its pool's capacity."
      path="adapters"
      columns={columns}
      specs={() => adapterSpecs(options(pools.map((p) => p.slug)))}
      id={(row) => row.slug}
      empty="No adapter yet: pools serve their own models only."
    />
  );
}
