import type { Quota } from "../../api/catalog";
import type { Column } from "../../components/Table";
import { compact } from "../../lib/format";
import { Resource } from "./Resource";
import { quotaSpecs } from "./specs";

const limit = (n: number | null) => (n === null ? <span className="text-faint">none</span> : <span title={`${n.toLocaleString("en")} tokens`}>{compact(n)}</span>);

const columns: Column<Quota>[] = [
  { label: "Period", by: (row) => row.period, cell: (row) => `${row.period} (UTC)` },
  { label: "Soft limit", unit: "tokens", right: true, by: (row) => row.soft_tokens, cell: (row) => limit(row.soft_tokens) },
  { label: "Hard limit", unit: "tokens", right: true, by: (row) => row.hard_tokens, cell: (row) => limit(row.hard_tokens) },
];

/** What a tenant may use in a day or month. */
export function Quotas({ tenant }: { tenant: string }) {
  return (
    <Resource<Quota>
      what="quota"
      title="Quotas"
      heading="h2"
      intro="Prompt and answer tokens over all pools. Passing the soft limit raises an alert; beyond the hard limit requests are refused until the period ends."
      path="quotas"
      query={{ tenant }}
      columns={columns}
      specs={() => quotaSpecs}
      id={(row) => String(row.id)}
      name={(row) => row.period}
      empty="No quota: use is limited only by its entitlements."
      extra={(typed) => ({ ...typed, tenant })}
    />
  );
}
