import type { Budget } from "../../api/catalog";
import type { Column } from "../../components/Table";
import { money, words } from "../../lib/format";
import { Resource } from "./Resource";
import { budgetSpecs } from "./specs";

const limit = (amount: string | null | undefined, currency: string) => (amount ? money(Number(amount), currency) : <span className="text-faint">none</span>);

const columns: Column<Budget>[] = [
  { label: "Of", by: (row) => `${row.scope} ${row.name}`, cell: (row) => (row.name ? `${words(row.scope ?? "")} ${row.name}` : "the tenant") },
  { label: "Soft limit", unit: "a month", right: true, by: (row) => Number(row.soft_amount), cell: (row) => limit(row.soft_amount, row.currency ?? "") },
  { label: "Hard limit", unit: "a month", right: true, by: (row) => Number(row.hard_amount), cell: (row) => limit(row.hard_amount, row.currency ?? "") },
];

/** What a tenant, or one project, user or key of it, may spend in a month. */
export function Budgets({ tenant }: { tenant: string }) {
  return (
    <Resource<Budget>
      what="budget"
      title="Budgets"
      heading="h2"
      intro="Money a month (UTC) over all pools, by the prices in force. Passing the soft limit raises an alert; from the hard limit on requests are refused until the month ends."
      path="budgets"
      query={{ tenant }}
      columns={columns}
      specs={() => budgetSpecs}
      id={(row) => String(row.id)}
      name={(row) => (row.name ? `${row.scope} ${row.name}'s budget` : "the tenant's budget")}
      empty="No budget: spending has no limit."
      extra={(typed) => ({ ...typed, tenant })}
    />
  );
}
