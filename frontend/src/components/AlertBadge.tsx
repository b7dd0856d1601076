import { useQuery } from "@tanstack/react-query";
import { get } from "../api/client";
import type { OpenAlerts } from "../api/operate";

const REFRESH_MS = 30_000;

/** How many alerts are open, beside the link to them; nothing while there are none. */
export function AlertBadge() {
  const { data } = useQuery({ queryKey: ["alerts", "open"], queryFn: ({ signal }) => get<OpenAlerts>("alerts/open", {}, signal), refetchInterval: REFRESH_MS, staleTime: 5000 });
  if (!data?.open) return null;
  return (
    <span data-testid="open-alerts" className={`ml-0.5 inline-flex h-4.5 min-w-4.5 items-center justify-center rounded-full px-1 text-2xs font-semibold ${data.critical ? "bg-bad-bg text-bad" : "bg-warn-bg text-warn"}`}>
      {data.open > 99 ? "99+" : data.open}
      <span className="sr-only"> open</span>
    </span>
  );
}
