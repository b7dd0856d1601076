import { useQuery } from "@tanstack/react-query";
import { get } from "../api/client";
import type { TenantSlots } from "./palette";

const NONE: TenantSlots = {};

/** Which colour each tenant has. A tenant made since is coloured by its name until this is read again. */
export function useTenantColors(): TenantSlots {
  const { data } = useQuery({ queryKey: ["catalog", "tenant-colors"], queryFn: ({ signal }) => get<{ colors: TenantSlots }>("tenant-colors", {}, signal), staleTime: 300_000 });
  return data?.colors ?? NONE;
}
