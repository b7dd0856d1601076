/** Which rows Kubernetes keeps, and which of their fields are changed there. */

import { useQuery } from "@tanstack/react-query";
import { list, type Owner } from "../../api/catalog";
import { user } from "../../lib/page";

const kinds: Record<string, string> = {
  slos: "Slo",
  tiers: "Tier",
  pools: "TokenPool",
  backends: "Backend",
  tenants: "Tenant",
  projects: "Project",
  adapters: "Adapter",
  entitlements: "TokenEntitlement",
  keys: "ApiKey",
};

/** Kind and name of the row at a path of the API, such as "pools/llama"; nothing where Kubernetes keeps none of its kind. */
export function rowAt(path: string): { kind: string; name: string } | undefined {
  const [collection = "", name = "", more] = path.split("/");
  const kind = Object.hasOwn(kinds, collection) ? kinds[collection] : undefined;
  return kind && name && more === undefined ? { kind, name } : undefined;
}

/** The resource that keeps the row at this path; undefined while it is not known, and where there is none. */
export function useOwner(path: string): Owner | undefined {
  const row = rowAt(path);
  const found = useQuery({
    queryKey: ["catalog", "owners", row],
    queryFn: ({ signal }) => list<Owner>("owners", row ?? {}, signal),
    enabled: row !== undefined && user.role !== "member",
    staleTime: 10_000,
  });
  return found.data?.results[0];
}
