import { useEffect } from "react";
import type { Explored, Filters } from "../../api/requests";
import { Table, type Column } from "../../components/Table";
import { compact, counted, moment, percent, seconds, text, words } from "../../lib/format";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { HeatMap } from "./HeatMap";
import { GROUPS, useExplored } from "./useExplored";

const SHOWN = 6;
const FACETS = ["outcome", "reason", "tenant", "tier", "backend", "key", "user"] as const;
const filterOf = (facet: string): string => (facet === "key" ? "key_id" : facet);

/** Values that were seen, by term: what the query bar completes with. */
export type Known = Partial<Record<string, readonly string[]>>;

type Group = Explored["groups"][number];
const time = (s: number | null): string => text(seconds(s ?? undefined));

/** Counts by value, and percentiles by group, of the requests that fit. */
export function Explore({ filters, onChange, onKnown, figures = false }: { filters: Filters; onChange: (changes: Record<string, string>) => void; onKnown: (known: Known) => void; figures?: boolean }) {
  const [query, setQuery] = useAddress();
  const { group, measure, data, error } = useExplored(filters, figures);
  useEffect(() => {
    if (data) onKnown(Object.fromEntries(Object.entries(data.facets).map(([name, rows]) => [name, rows.map(({ value }) => value)])));
  }, [data, onKnown]);
  if (error) return <p className="mb-3 text-sm text-bad">Counts could not be read: {error.message}</p>;
  if (!data) return <div className="skeleton mb-3 h-24" />;
  const columns: Column<Group>[] = [
    { label: group[0]!.toUpperCase() + group.slice(1), by: (row) => row.name, cell: (row) => row.name || "–" },
    { label: "Requests", right: true, by: (row) => row.requests, cell: (row) => compact(row.requests) },
    ...(["waited", "ttft", "total"] as const).flatMap((name): Column<Group>[] => [
      { label: { waited: "Waited", ttft: "TTFT", total: "Total" }[name], unit: "p50", right: true, by: (row) => row[`${name}_p50`], cell: (row) => time(row[`${name}_p50`]) },
      { label: { waited: "Waited", ttft: "TTFT", total: "Total" }[name], unit: "p95", right: true, by: (row) => row[`${name}_p95`], cell: (row) => time(row[`${name}_p95`]) },
    ]),
  ];
  return (
    <details className="panel mb-3 px-3 py-2" open={query.get("summary") !== "0"} onToggle={(event) => {
      const open = event.currentTarget.open;
      if (open !== (query.get("summary") !== "0")) setQuery((old) => { if (open) old.delete("summary"); else old.set("summary", "0"); return old; }, { replace: true });
    }}>
      <summary className="cursor-pointer text-sm font-medium">
        {data.share < 1 && "about "}
        {counted(data.requests, "request matches", "requests match")}{" "}
        {data.share < 1 && <span className="font-normal text-faint">estimated, as all below, from an even sample of {text(percent(data.share))} of them</span>}
        {data.searched_to && <span className="font-normal text-faint">of those since {moment(Date.parse(data.searched_to) / 1000)}; older ones are not summed up</span>}
      </summary>
      <div className="mt-2 grid grid-cols-[repeat(auto-fill,minmax(min(100%,11rem),1fr))] gap-3" data-testid="facets">
        {FACETS.filter((name) => data.facets[name]?.some(({ value }) => value) && !(name === "backend" && user.role === "member")).map((name) => (
          <div key={name} className="min-w-0">
            <h2 className="label">{name}</h2>
            <ul className="mt-0.5 text-sm">
              {data.facets[name]!.filter(({ value }) => value).slice(0, SHOWN).map(({ value, requests }) => {
                const chosen = filters[filterOf(name) as keyof Filters] === value;
                return (
                  <li key={value}>
                    <button type="button" aria-pressed={chosen} className="flex w-full justify-between gap-2 rounded px-1 text-left hover:bg-raised aria-pressed:bg-raised aria-pressed:font-medium" onClick={() => onChange({ [filterOf(name)]: chosen ? "" : value })}>
                      <span className="truncate">{words(value)}</span>
                      <span className="text-faint">{compact(requests)}</span>
                    </button>
                  </li>
                );
              })}
            </ul>
          </div>
        ))}
      </div>
      <HeatMap heat={data.heat} measure={measure} onMeasure={(value) => onChange({ heat: value === "ttft" ? "" : value })} onChange={(changes) => onChange(changes as Record<string, string>)} />
      <label className="mt-3 mb-1 flex items-center gap-2 text-sm">
        <span className="text-faint">Percentiles by</span>
        <select className="field" value={group} onChange={(event) => onChange({ group: event.target.value })}>
          {GROUPS.filter((name) => name !== "backend" || user.role !== "member").map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      <Table label={`Percentiles by ${group}`} rows={data.groups} columns={columns} id={(row) => row.name} empty="No request matches." sortedBy={{ column: 1, descending: true }} />
    </details>
  );
}
