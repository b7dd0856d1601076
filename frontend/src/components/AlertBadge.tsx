import { useQuery } from "@tanstack/react-query";
import { get } from "../api/client";
import { useOutages } from "../feed/live";
import { isBlind } from "../feed/outages";
import type { OpenAlerts } from "../api/operate";

const REFRESH_MS = 5_000;

export const useOpenAlerts = () =>
  useQuery({ queryKey: ["alerts", "open"], queryFn: ({ signal }) => get<OpenAlerts>("alerts/open", {}, signal), refetchInterval: REFRESH_MS, staleTime: 5000 });

/** How many alerts are open, beside the link to them; nothing while there are none. */
export function AlertBadge() {
  const { data } = useOpenAlerts();
  const outages = useOutages();
  if (!data?.open && (isBlind(outages) || data?.unwatched.length || outages.some(({ source }) => source === "rules")))
    return (
      <span data-testid="open-alerts" title="Alert rules are not evaluated now" className="ml-0.5 inline-flex h-4.5 min-w-4.5 items-center justify-center rounded-full bg-warn-bg px-1 text-2xs font-semibold text-warn">
        ?<span className="sr-only"> unknown: rules are not evaluated</span>
      </span>
    );
  if (!data?.open) return null;
  return (
    <span data-testid="open-alerts" className={`ml-0.5 inline-flex h-4.5 min-w-4.5 items-center justify-center rounded-full px-1 text-2xs font-semibold ${data.critical ? "bg-bad-bg text-bad" : "bg-warn-bg text-warn"}`}>
      {data.open > 99 ? "99+" : data.open}
      <span className="sr-only"> open</span>
    </span>
  );
}
