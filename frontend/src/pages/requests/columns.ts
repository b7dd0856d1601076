/** Which columns the list of requests has, and in which order its rows stand: both in the address. Pure. */

export const COLUMNS = [
  { id: "outcome", label: "Outcome" },
  { id: "tenant", label: "Tenant" },
  { id: "tier", label: "Tier" },
  { id: "waited", label: "Waited" },
  { id: "ttft", label: "TTFT" },
  { id: "total", label: "Total" },
  { id: "tokens", label: "Tokens in · out" },
  { id: "slo", label: "SLO" },
  { id: "backend", label: "Backend" },
  { id: "entitlement", label: "Entitlement" },
  { id: "key", label: "Key" },
  { id: "pool", label: "Pool" },
  { id: "model", label: "Model" },
  { id: "policy", label: "Policy" },
] as const;
export type ColumnId = (typeof COLUMNS)[number]["id"];

const USUAL: readonly ColumnId[] = ["outcome", "tenant", "tier", "waited", "ttft", "total", "tokens", "slo", "backend"];

/** The columns of an address, in their own order; unknown names are left out. */
export function chosen(text: string | null): readonly ColumnId[] {
  if (text === null) return USUAL;
  const wanted = text.split(",");
  return COLUMNS.map(({ id }) => id).filter((id) => wanted.includes(id));
}

/** What stands in the address: nothing for the usual ones. */
export const columnsText = (ids: readonly ColumnId[]): string => {
  const text = COLUMNS.map(({ id }) => id).filter((id) => ids.includes(id)).join(",");
  return text === USUAL.join(",") ? "" : text || "none";
};

/** Orders that the server knows, by column. */
export const ORDERS: Partial<Record<ColumnId, string>> = { waited: "waited", ttft: "ttft", total: "total", tokens: "input_tokens" };
