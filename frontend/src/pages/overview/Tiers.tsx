import { Table, type Column } from "../../components/Table";
import type { Snapshot, TierFigures } from "../../feed/types";
import { count, duration, NONE, percent, rate, seconds, text } from "../../lib/format";
import { isLow } from "./verdict";

type Row = TierFigures & { name: string };

function Against({ value, target }: { value: number | undefined; target: number | undefined }) {
  if (target === undefined && value === undefined) return <span className="text-faint">{NONE}</span>;
  const late = value !== undefined && target !== undefined && value > target * 1000;
  return (
    <>
      <span className={late ? "font-medium text-bad" : ""}>{text(duration(value))}</span>
      <span className="text-faint"> / {target === undefined ? "no SLO" : text(seconds(target))}</span>
    </>
  );
}

const columns: Column<Row>[] = [
  { label: "Tier", by: (t) => t.name, cell: (t) => t.name },
  { label: "Attainment", unit: "of all asked", right: true, by: (t) => t.attainment, cell: (t) => <span className={isLow(t.attainment) ? "font-medium text-bad" : ""}>{text(percent(t.attainment))}</span> },
  { label: "Served", unit: "in time", right: true, by: (t) => t.attainment_served, cell: (t) => text(percent(t.attainment_served)) },
  { label: "Refused", unit: "1 min", right: true, by: (t) => (t.asked === undefined ? undefined : t.asked - (t.total ?? 0)), cell: (t) => (t.asked === undefined ? NONE : count(t.asked - (t.total ?? 0))) },
  { label: "Violations", unit: "1 min", right: true, by: (t) => t.violations, cell: (t) => (t.total === undefined ? NONE : `${count(t.violations ?? 0)} of ${count(t.total)}${t.left ? `, ${count(t.left)} left` : ""}`) },
  { label: "Rate", unit: "violations/s", right: true, by: (t) => t.violations, cell: (t) => rate(t.violations === undefined ? undefined : t.violations / 60) },
  { label: "TTFT p95 / target", right: true, by: (t) => t.latency?.ttft_ms?.p95, cell: (t) => <Against value={t.latency?.ttft_ms?.p95} target={t.ttft_s} /> },
  { label: "TBT p95 / target", right: true, by: (t) => t.latency?.tbt_ms?.p95, cell: (t) => <><Against value={t.latency?.tbt_ms?.p95} target={t.tbt_s} />{t.tbt_why && <span className="ml-auto block max-w-72 whitespace-normal text-2xs text-warn">{t.tbt_why}</span>}</> },
  { label: "TTLT p95 / target", right: true, by: (t) => t.latency?.ttlt_ms?.p95, cell: (t) => <Against value={t.latency?.ttlt_ms?.p95} target={t.ttlt_s} /> },
];

/** What each tier promises, and how that goes. */
export function Tiers({ snapshot }: { snapshot: Snapshot }) {
  const rows = Object.entries(snapshot.slo?.by_tier ?? {}).map(([name, tier]) => ({ name, ...tier }));
  if (rows.length === 0) return null;
  return (
    <section aria-labelledby="tiers-title">
      <h2 id="tiers-title" className="mb-2 text-sm font-semibold">
        SLOs by tier <span className="font-normal text-faint">requests ended in the last minute</span>
      </h2>
      <Table label="Table of tiers" rows={rows} columns={columns} id={(t) => t.name} empty="" sortedBy={{ column: 0, descending: false }} />
    </section>
  );
}
