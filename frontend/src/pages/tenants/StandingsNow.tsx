import { useQuery } from "@tanstack/react-query";
import { createContext, use, useMemo, useRef, useState, type ReactNode } from "react";
import { get } from "../../api/client";
import type { AlertRule } from "../../api/operate";
import { useLive, useNow, useOutages } from "../../feed/live";
import { isHeard, type Outage } from "../../feed/outages";
import type { FeedState } from "../../feed/reducer";
import { user } from "../../lib/page";
import type { PoolStanding } from "./fleet";
import { NOTHING_SEEN, watch, type Watched } from "./recovery";
import { standings, thresholds } from "./standings";

const staff = user.role === "admin" || user.role === "operator";

/** The rules whose thresholds show what is too much; members do not get them. */
const useAlertRules = () =>
  useQuery({ queryKey: ["alerts", "rules"], queryFn: ({ signal }) => get<AlertRule[]>("alert-rules", {}, signal), enabled: staff, staleTime: 60_000 });

/** One second as it was judged, with what it was judged from. */
interface Judged {
  now: number;
  feed: FeedState;
  outages: readonly Outage[];
  /** Whether the server has sent what there is: before that these are not all pools. */
  heard: boolean;
  pools: readonly PoolStanding[];
}

const Context = createContext<Judged | null>(null);

/** Judges all pools for the strip above each page, *Pools* and *Alerts*, by one clock, so that they agree. Once a second,
 * and with each outage: two hundred pools send two hundred changes a second. */
export function StandingsNow({ children }: { children: ReactNode }) {
  const rules = useAlertRules();
  const feed = useLive();
  const outages = useOutages();
  const now = useNow();
  const latest = useRef(feed);
  latest.current = feed;
  const heard = isHeard(feed) || outages.length > 0;
  const present = useMemo(
    () => ({ now, feed: latest.current, outages, heard, by: thresholds(rules.data), pools: standings(latest.current, outages, now, rules.data) }),
    [now, outages, heard, rules.data],
  );
  // What is shown depends on what was seen before. Set while this is drawn, not in an effect: no frame shows the second before.
  const [watched, setWatched] = useState<{ of: typeof present | undefined; value: Watched }>({ of: undefined, value: NOTHING_SEEN });
  if (watched.of !== present) setWatched({ of: present, value: watch(watched.value, present.now, present.pools, present.by) });
  const { shown } = watched.value;
  const judged = useMemo((): Judged => ({ ...present, pools: shown }), [present, shown]);
  return <Context value={judged}>{children}</Context>;
}

export function useJudged(): Judged {
  const judged = use(Context);
  if (!judged) throw new Error("useJudged outside of StandingsNow");
  return judged;
}
