import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { memo, useState } from "react";
import { Link } from "react-router";
import { liveRows } from "../../api/live";
import { Badge, type Tone } from "../../components/Badge";
import { Icon } from "../../components/icons";
import { Meter } from "../../components/Meter";
import { Segmented } from "../../components/Segmented";
import type { Percentiles, Snapshot } from "../../feed/types";
import { compact, count, duration, NONE, percent, ranked, text, total, words } from "../../lib/format";
import { rows, sorted, standingOf, type Grouping, type Row, type SortKey } from "../rows";

const states: Record<string, Tone> = { bound: "good", degraded: "warn", pending: "warn", expired: "bad" };

function Percentile({ value }: { value: Percentiles }) {
  const cell = "inline-block min-w-15 pl-2 text-right whitespace-nowrap";
  return (
    <>
      <span className={`${cell} text-soft`}>{text(duration(value.p50))}</span>
      <span className={`${cell} font-medium`}>{text(duration(value.p95))}</span>
      <span className={`${cell} text-soft`}>{text(duration(value.p99))}</span>
    </>
  );
}

const Line = memo(
  function Line({ row, byTenant }: { row: Row; byTenant: boolean }) {
    const missed = row.attainment !== undefined && row.attainment < 0.9;
    return (
      <tr className="border-t border-line hover:bg-raised/50">
        <th scope="row" className="sticky left-0 z-1 max-w-44 bg-panel py-1.5 pr-3 pl-3 text-left font-medium">
          {byTenant ? (
            <Link className="link block truncate" to={`/tenants/${row.name}`} title={row.name}>
              {row.name}
            </Link>
          ) : (
            <>
              <span className="block truncate" title={row.name}>
                {row.name}
              </span>
              <Link className="link block truncate text-2xs font-normal" to={`/tenants/${row.tenant}`}>
                {row.tenant}
              </Link>
            </>
          )}
        </th>
        {!byTenant && (
          <td className="px-3">
            <span className="flex items-center gap-1.5">
              {row.tier ?? NONE}
              {row.paused && <Badge tone="warn">paused</Badge>}
              {row.state && row.state !== "bound" && <Badge tone={states[row.state]}>{row.state}</Badge>}
            </span>
          </td>
        )}
        <td className="px-3 text-right">{count(row.waiting)}</td>
        <td className="w-36 px-3">
          <span className="flex items-center justify-end gap-2">
            <Meter ratio={row.limit && row.running !== undefined ? row.running / row.limit : undefined} label={`Running of ${row.name}'s limit`} className="w-14" />
            <span className="min-w-14 text-right whitespace-nowrap">
              {count(row.running)}
              <span className="text-faint"> / {count(row.limit)}</span>
            </span>
          </span>
        </td>
        <td className="px-3 text-right">
          <span className="inline-block min-w-12">{count(row.input)}</span>
          <span className="text-faint"> · </span>
          <span className="inline-block min-w-12">{count(row.output)}</span>
        </td>
        {!byTenant && <td className="px-3 text-right">{row.budget ? compact(row.budget) : <span className="text-faint">no limit</span>}</td>}
        {!byTenant && (
          <td className="px-3 text-right" title={standingOf(row)}>
            {row.weight === undefined ? NONE : row.weight >= 100 ? compact(row.weight) : Number(row.weight.toPrecision(3))}
          </td>
        )}
        {!byTenant && <td className={`px-3 text-right ${(row.debt ?? 0) > 0.1 ? "font-medium text-warn" : ""}`}>{row.debt === undefined ? NONE : Math.abs(row.debt) < 0.005 ? "0" : `${row.debt > 0 ? "+" : ""}${row.debt.toFixed(2)}`}</td>}
        <td className="px-3 text-right whitespace-nowrap">
          <Percentile value={row.ttft} />
        </td>
        <td className="px-3 text-right whitespace-nowrap">
          <Percentile value={row.ttlt} />
        </td>
        <td className={`px-3 text-right whitespace-nowrap ${missed ? "font-medium text-bad" : ""}`} title={row.judged}>
          {text(percent(row.attainment))}
          <span className={`ml-1.5 inline-block min-w-6 ${row.violations ? "" : "text-faint"}`}>{count(row.violations)}</span>
        </td>
        <td className="max-w-60 min-w-36 px-3">
          {row.refused === undefined ? (
            NONE
          ) : total(row.refused) === 0 ? (
            <span className="text-faint">none</span>
          ) : (
            <span className="block truncate" title={ranked(row.refused).map(([reason, n]) => `${n} ${words(reason)}`).join(", ")}>
              {ranked(row.refused)
                .map(([reason, n]) => `${compact(n)} ${words(reason)}`)
                .join(", ")}
            </span>
          )}
        </td>
      </tr>
    );
  },
  (a, b) => a.byTenant === b.byTenant && JSON.stringify(a.row) === JSON.stringify(b.row),
);

interface Head {
  key?: SortKey;
  label: string;
  unit?: string;
  right?: boolean;
  tenantToo?: boolean;
}

const heads: Head[] = [
  { key: "name", label: "Entitlement", tenantToo: true },
  { key: "tier", label: "Tier" },
  { key: "waiting", label: "Waiting", right: true, tenantToo: true },
  { key: "running", label: "Running / limit", right: true, tenantToo: true },
  { key: "tokens", label: "Tokens in · out", unit: "per s", right: true, tenantToo: true },
  { label: "Budget", unit: "tok/s", right: true },
  { key: "weight", label: "Weight", right: true },
  { key: "debt", label: "Debt", right: true },
  { key: "ttft", label: "TTFT", unit: "p50 · p95 · p99", right: true, tenantToo: true },
  { key: "ttlt", label: "TTLT", unit: "p50 · p95 · p99", right: true, tenantToo: true },
  { key: "attainment", label: "Attainment", unit: "· missed", right: true, tenantToo: true },
  { key: "refused", label: "Refused", unit: "1 min", tenantToo: true },
];

/** What the server knows as an order; by the other columns those rows are sorted that are here. */
const orders: Partial<Record<SortKey, string>> = { waiting: "waiting", running: "running", refused: "refused", violations: "violations", debt: "debt", weight: "weight" };

/** A snapshot with the rows that are searched for, or come first by a column, where most are not pushed. */
function useRows(pushed: Snapshot, partial: boolean, search: string, order: string): Snapshot {
  const asked = partial && (search !== "" || order !== "busy");
  const found = useQuery({
    queryKey: ["live", pushed.pool, search, order],
    queryFn: ({ signal }) => liveRows({ pool: pushed.pool, search, order }, signal),
    enabled: asked,
    refetchInterval: 2000,
    placeholderData: keepPreviousData,
  });
  return (asked && found.data?.pools[pushed.pool]) || pushed;
}

/** Who uses the pool, and how it goes for them. */
export function Entitlements({ snapshot: pushed }: { snapshot: Snapshot }) {
  const [grouping, setGrouping] = useState<Grouping>("entitlement");
  const [sort, setSort] = useState<{ key: SortKey; descending: boolean }>({ key: "name", descending: false });
  const [search, setSearch] = useState("");
  const byTenant = grouping === "tenant";
  const missing = pushed.left_out?.[byTenant ? "tenants" : "entitlements"] ?? 0;
  const snapshot = useRows(pushed, missing > 0, search.trim(), sort.descending ? (orders[sort.key] ?? "busy") : "busy");
  const all = Object.keys((byTenant ? pushed.tenants : pushed.entitlements) ?? {}).length + missing;
  const list = sorted(rows(snapshot, grouping), sort.key, sort.descending);
  const press = (key: SortKey) => setSort((old) => ({ key, descending: old.key === key ? !old.descending : key !== "name" && key !== "tier" }));
  return (
    // Out of sight it is not laid out: fifty rows that change each second cost more than all charts.
    <section aria-labelledby="entitlements-title" className="[contain-intrinsic-size:auto_36rem] [content-visibility:auto] print:[content-visibility:visible]">
      <div className="mb-2 flex flex-wrap items-center justify-between gap-2">
        <h2 id="entitlements-title" className="text-sm font-semibold">
          {byTenant ? "Tenants" : "Entitlements"} <span className="font-normal text-faint">{missing > 0 ? `${list.length} of ${all.toLocaleString("en")}` : list.length}</span>
        </h2>
        {missing > 0 && <input type="search" aria-label="Find among all" placeholder="Find among all" className="field ml-auto w-44" value={search} onChange={(event) => setSearch(event.target.value)} />}
        <Segmented
          label="One row per"
          value={grouping}
          options={[
            { value: "entitlement", label: "By entitlement" },
            { value: "tenant", label: "By tenant" },
          ]}
          onChange={setGrouping}
        />
      </div>
      {list.length === 0 && missing > 0 ? (
        <p className="panel p-6 text-center text-sm text-soft">No name or tenant contains this.</p>
      ) : list.length === 0 ? (
        <p className="panel p-6 text-center text-sm text-soft">This pool has no entitlements yet. Add an entitlement, then a key for it.</p>
      ) : (
        <div className="panel max-h-[32rem] overflow-auto" role="region" aria-label={byTenant ? "Table of tenants" : "Table of entitlements"} tabIndex={0}>
          <table className="w-full border-collapse text-sm">
            <thead>
              <tr className="text-2xs text-faint">
                {heads
                  .filter((head) => !byTenant || head.tenantToo)
                  .map((head) => {
                    const label = head.key === "name" && byTenant ? "Tenant" : head.label;
                    const current = head.key === sort.key;
                    return (
                      <th
                        key={head.label}
                        scope="col"
                        aria-sort={current ? (sort.descending ? "descending" : "ascending") : undefined}
                        className={`sticky top-0 bg-panel px-3 py-2 font-medium whitespace-nowrap ${head.right ? "text-right" : "text-left"} ${head.key === "name" ? "left-0 z-3" : "z-2"}`}
                      >
                        {head.key ? (
                          <button type="button" className={`inline-flex items-center gap-1 hover:text-ink ${current ? "text-ink" : ""}`} onClick={() => press(head.key!)}>
                            {label}
                            {head.unit && <span className="font-normal text-faint">{head.unit}</span>}
                            <span className={`-mx-0.5 ${current ? "" : "invisible"}`}>
                              <Icon name={sort.descending ? "down" : "up"} />
                            </span>
                          </button>
                        ) : (
                          <>
                            {label} {head.unit && <span className="font-normal">{head.unit}</span>}
                          </>
                        )}
                      </th>
                    );
                  })}
              </tr>
            </thead>
            <tbody>
              {list.map((row) => (
                <Line key={row.key} row={row} byTenant={byTenant} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
