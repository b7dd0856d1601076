/** The catalog for React: one cache entry per list, refreshed together after a write. */

import { useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { useMemo } from "react";
import { list, type List } from "../../api/catalog";
import { liveRows } from "../../api/live";
import { useFeed, useNow } from "../../feed/live";
import { freshness, isStale } from "../../feed/reducer";
import type { Snapshot } from "../../feed/types";

export function useCatalog<T>(path: string, query: Record<string, string> = {}, enabled = true): UseQueryResult<T[]> & { count: number } {
  const found = useQuery({
    queryKey: ["catalog", path, query],
    queryFn: ({ signal }) => list<T>(path, query, signal),
    enabled,
    staleTime: 2000,
  });
  const data = found.data as List<T> | undefined;
  return { ...found, data: data?.results, count: data?.count ?? 0 } as UseQueryResult<T[]> & { count: number };
}

/** Whether a list of the catalog is here, and all of it: before that nothing can be called none. */
export const isWhole = (list: { data: readonly unknown[] | undefined; count: number }): boolean => list.data !== undefined && list.data.length >= list.count;

/** Everything that was read of the catalog is read again: a write changes more than its own row. */
export function useRefresh(): () => Promise<void> {
  const client = useQueryClient();
  return () => client.invalidateQueries({ queryKey: ["catalog"] });
}

/** The same with every row of one tenant: of pools with hundreds of them only the busiest are pushed, so its own are asked for. */
export function useSnapshotsOf(tenant: string): readonly Snapshot[] {
  const snapshots = useSnapshots();
  const partial = snapshots.some((snapshot) => snapshot.left_out);
  const own = useQuery({ queryKey: ["live", tenant], queryFn: ({ signal }) => liveRows({ tenant }, signal), enabled: partial, refetchInterval: 2000 }).data;
  return useMemo(() => (partial && own ? snapshots.map((snapshot) => (snapshot.left_out ? (own.pools[snapshot.pool] ?? snapshot) : snapshot)) : snapshots), [snapshots, partial, own]);
}

/** The pools as they are now. One that cannot be seen is not among them: what it was is not what it is. */
export function useSnapshots(): readonly Snapshot[] {
  const feed = useFeed();
  const now = useNow();
  const fresh = Object.entries(feed.pools).flatMap(([name, pool]) => (isStale(freshness(feed, pool, now)) ? [] : [name])).join(" ");
  return useMemo(() => Object.entries(feed.pools).flatMap(([name, pool]) => (fresh.split(" ").includes(name) ? [pool.snapshot] : [])), [feed.pools, fresh]);
}
