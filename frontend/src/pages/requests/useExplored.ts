import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { explored, type Filters } from "../../api/requests";
import { useAddress } from "../../lib/useAddress";
import { MEASURES } from "./heat";

const REFRESH_MS = 15_000;
export const GROUPS = ["tenant", "tier", "outcome", "reason", "pool", "key", "user", "entitlement", "backend"] as const;

/** The requests that fit, summed up as the address says; `figures`: over their time as well. Asked once for all that show a part of it. */
export function useExplored(filters: Filters, figures = false) {
  const [query] = useAddress();
  const group = GROUPS.find((name) => name === query.get("group")) ?? "tenant";
  const measure = MEASURES.find(({ value }) => value === query.get("heat"))?.value ?? "ttft";
  const { data, error, isPlaceholderData } = useQuery({
    queryKey: ["requests", "explore", filters, group, measure, figures],
    queryFn: ({ signal }) => explored(filters, group, measure, signal, figures),
    placeholderData: keepPreviousData,
    refetchInterval: REFRESH_MS,
  });
  return { group, measure, data, error, old: isPlaceholderData };
}
