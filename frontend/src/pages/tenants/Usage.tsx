import { keepPreviousData, useQuery } from "@tanstack/react-query";
import type { Key, Usage, UsageRow } from "../../api/catalog";
import { get } from "../../api/client";
import { since } from "../../components/Outages";
import { Segmented } from "../../components/Segmented";
import { Table, type Column } from "../../components/Table";
import { useOutages } from "../../feed/live";
import { cutsPast } from "../../feed/outages";
import { compact, counted, dated, money, NONE, percent, seconds, text } from "../../lib/format";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { Costs } from "./Costs";
import { useCatalog } from "./data";
import { Failed, Waiting } from "./parts";
import { givenUp, groupsOf, GROUPS, lacking, monthOf, RANGES, shown, span, toggled, tokensOf, totalOf, type Group } from "./usage";

const REFRESH_MS = 30_000;

/** A sum of tokens, and of how many requests it lacks them. */
function Tokens({ sum, row }: { sum: number; row: UsageRow }) {
  return (
    <>
      {compact(sum)}
      {!!row.tokens_unknown && (
        <span className="block text-2xs text-warn" title={lacking(row.tokens_unknown)}>
          unknown of {compact(row.tokens_unknown)}
        </span>
      )}
    </>
  );
}

/** What was used, by whatever one asks. */
export function UsagePanel({ tenant }: { tenant?: string }) {
  const [query, setQuery] = useAddress();
  const range = query.get("range") ?? "24h";
  const groups = groupsOf(query.get("by"), tenant ? "key" : "tenant");
  const now = Date.now();
  const { from, to } = span(range, now, query.get("first"), query.get("last"));
  const month = monthOf(range, now);
  const asked = { group_by: groups.join(","), from, to, tenant: tenant ?? "" };
  const { data, error, isPending, isPlaceholderData, refetch } = useQuery({
    queryKey: ["usage", tenant, range, groups, from, to],
    queryFn: ({ signal }) => get<Usage>("usage", asked, signal),
    placeholderData: keepPreviousData,
    refetchInterval: REFRESH_MS,
  });
  const keys = useCatalog<Key>("keys", tenant ? { tenant } : {}, groups.includes("key")).data;
  const names = new Map(keys?.map((key) => [key.id, key.name]));
  const set = (changes: Record<string, string>) =>
    setQuery(
      (old) => {
        for (const [name, value] of Object.entries(changes)) old.set(name, value);
        return old;
      },
      { replace: true },
    );
  const rows = data?.rows ?? [];
  const total = totalOf(rows);
  const lacks = lacking(total.unknown);
  const left = givenUp(total);
  const share = (row: UsageRow): number => (total.input + total.output > 0 ? tokensOf(row) / (total.input + total.output) : 0);
  const csv = `/api/v1/usage?${new URLSearchParams({ ...Object.fromEntries(Object.entries(asked).filter(([, value]) => value)), format: "csv" })}`;
  const bill = (format: string) => `/api/v1/statements?${new URLSearchParams({ month: month ?? "", ...(tenant ? { tenant } : {}), format })}`;
  const cell = (group: Group, row: UsageRow) => {
    const value = shown(group, row[group]);
    const name = group === "key" ? names.get(String(row[group])) : undefined;
    return name ? (
      <>
        {name} <span className="font-mono text-2xs font-normal text-faint">qm-{value}</span>
      </>
    ) : (
      <span className="block truncate max-sm:break-words max-sm:whitespace-normal" title={value}>{value}</span>
    );
  };
  const costs = rows.flatMap((row) => (row.cost !== null && row.currency ? [row.cost] : []));
  const columns: Column<UsageRow>[] = [
    ...groups.filter((group) => data?.columns.includes(group)).map((group): Column<UsageRow> => ({ label: group[0]!.toUpperCase() + group.slice(1), by: (row) => row[group], cell: (row) => cell(group, row), className: "max-w-60" })),
    {
      label: "Requests",
      right: true,
      by: (row) => row.requests,
      cell: (row) => (
        <>
          {compact(row.requests)}
          {!!row.cancelled && <span className="block text-2xs text-faint">{compact(row.cancelled)} cancelled</span>}
        </>
      ),
    },
    { label: "Refused", right: true, by: (row) => row.refused, cell: (row) => compact(row.refused) },
    { label: "Failed", right: true, by: (row) => row.failed, cell: (row) => compact(row.failed) },
    { label: "Tokens in", right: true, by: (row) => row.input_tokens, cell: (row) => <Tokens sum={row.input_tokens} row={row} /> },
    { label: "Tokens out", right: true, by: (row) => row.output_tokens, cell: (row) => <Tokens sum={row.output_tokens} row={row} /> },
    {
      label: "Share",
      unit: "of tokens",
      right: true,
      by: tokensOf,
      cell: (row) => (
        <span className="flex items-center justify-end gap-2">
          <span className="h-1.5 w-12 overflow-hidden rounded-full bg-raised print:[print-color-adjust:exact]" aria-hidden="true">
            <span className="block h-full rounded-full bg-accent" style={{ width: `${share(row) * 100}%` }} />
          </span>
          <span className="min-w-12">{text(percent(share(row)))}</span>
        </span>
      ),
    },
    { label: "Cost", right: true, by: (row) => row.cost, cell: (row) => (row.cost === null ? row.currency : row.currency ? money(row.cost, row.currency, costs) : NONE) },
    { label: "Slot time", right: true, by: (row) => row.slot_s, cell: (row) => text(seconds(row.slot_s)) },
    {
      label: "Attainment",
      unit: "of all asked",
      right: true,
      by: (row) => row.attainment,
      cell: (row) => (
        <>
          {text(percent(row.attainment ?? undefined))}
          {row.slo_asked !== row.requests && <span className="block text-2xs text-faint">{compact(row.slo_asked)} judged</span>}
        </>
      ),
    },
    { label: "Attainment", unit: "of those served", right: true, by: (row) => row.attainment_served, cell: (row) => text(percent(row.attainment_served ?? undefined)) },
    {
      label: "Attainment",
      unit: "first attempt",
      right: true,
      by: (row) => row.attainment_first,
      cell: (row) => (
        <>
          {text(percent(row.attainment_first ?? undefined))}
          {!!row.slo_retries && <span className="block text-2xs text-faint">{counted(row.slo_retries, "retry", "retries")} left out</span>}
        </>
      ),
    },
  ];
  return (
    <section aria-label="Usage">
      <div className="mb-3 flex flex-wrap items-center justify-between gap-x-4 gap-y-2">
        <div className="flex max-w-full flex-wrap items-center gap-2">
          <Segmented label="Time" value={range} options={RANGES.map(({ id, label }) => ({ value: id, label }))} onChange={(value) => set({ range: value })} />
          <div role="group" aria-label="Group by" className="flex flex-wrap items-center gap-1">
            <span className="mr-1 text-xs text-faint">by</span>
            {GROUPS.filter((group) => !(tenant && group === "tenant")).map((group) => (
              <button
                key={group}
                type="button"
                aria-pressed={groups.includes(group)}
                onClick={() => set({ by: toggled(groups, group).join(",") })}
                className="h-7 rounded-full border border-line px-2.5 text-xs text-soft hover:text-ink aria-pressed:border-accent aria-pressed:font-medium aria-pressed:text-ink"
              >
                {group}
              </button>
            ))}
          </div>
        </div>
        <div className="flex flex-wrap gap-2 print:hidden">
          <a className="button" href={csv} download>
            Download CSV
          </a>
          {month && (
            <>
              <a className="button" href={bill("csv")} download>
                Statement
              </a>
              <a className="button" href={bill("focus")} download>
                FOCUS
              </a>
              <a className="button" href={bill("parquet")} download>
                Parquet
              </a>
            </>
          )}
          <button type="button" className="button" onClick={() => window.print()}>
            Print
          </button>
        </div>
      </div>
      {range === "dates" && (
        <div className="mb-3 flex flex-wrap gap-3 text-sm text-soft">
          {(["first", "last"] as const).map((name) => (
            <label key={name} className="flex items-center gap-2">
              {name} day (UTC)
              <input className="field" type="date" value={query.get(name) ?? ""} onChange={(event) => set({ [name]: event.target.value })} />
            </label>
          ))}
        </div>
      )}
      <Costs {...(tenant ? { tenant } : {})} from={from} to={to} by={(query.get("stack") ?? "") as Group} onBy={(group) => set({ stack: group })} />
      {error ? (
        <Failed error={error} retry={() => void refetch()} />
      ) : isPending ? (
        <Waiting />
      ) : (
        <div className={isPlaceholderData ? "opacity-60" : ""}>
          <p className="hidden text-sm text-soft print:block">
            From {dated(Date.parse(from) / 1000)} to {dated(Date.parse(to) / 1000)}
          </p>
          <p className="mb-2 text-sm text-soft">
            <span className="font-medium text-ink">{compact(total.requests)}</span> requests, <span className="font-medium text-ink">{compact(total.input)}</span> tokens in,{" "}
            <span className="font-medium text-ink">{compact(total.output)}</span> out
            {total.cost?.currency ? (
              <>
                , <span className="font-medium text-ink">{money(total.cost.sum, total.cost.currency)}</span>
              </>
            ) : null}
            .{lacks && <span className="text-warn"> {lacks}</span>}
          </p>
          {left && (
            <p className="mb-2 text-sm text-warn">
              {left}{" "}
              {!groups.includes("outcome") && (
                <button type="button" className="link underline print:hidden" onClick={() => set({ by: [...groups, "outcome"].join(",") })}>
                  How much that was
                </button>
              )}
            </p>
          )}
          <Table key={groups.join()} label="Usage" rows={rows} columns={columns} id={(row) => groups.map((group) => String(row[group])).join(" ")} empty="No requests in this period." />
        </div>
      )}
    </section>
  );
}

export function UsagePage() {
  const missing = cutsPast(useOutages());
  return (
    <>
      <title>Usage · Quartermaster</title>
      <h1 className="text-lg font-semibold tracking-tight">Usage</h1>
      <p className="mb-3 text-sm text-soft">{user.role === "member" ? "Of your tenants." : "Of all tenants."} {missing ? `What ended ${since(missing)} is not all included yet.` : "Complete hours are kept longer than the ledger; the newest are exact to the request."}</p>
      <UsagePanel />
    </>
  );
}
