import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { tailOf, type Filters, type LedgerRow } from "../../api/requests";
import { Icon } from "../../components/icons";
import { since } from "../../components/Outages";
import { useOutages } from "../../feed/live";
import { cutsPast } from "../../feed/outages";
import type { ColumnId } from "./columns";
import { List } from "./List";
import { grown, KEPT, type Followed } from "./follow";

const EVERY_MS = 2000;

/** Requests as they end, the newest on top. Only what is new is asked for. */
export function Following({ filters, columns, open, onRows }: { filters: Filters; columns: readonly ColumnId[]; open: (id: string) => void; onRows: (rows: readonly LedgerRow[]) => void }) {
  const [paused, setPaused] = useState(false);
  const client = useQueryClient();
  const missing = cutsPast(useOutages(), filters.pool || undefined);
  const key = ["requests", "tail", filters];
  const { data, error } = useQuery({
    queryKey: key,
    queryFn: async ({ signal }): Promise<Followed> => {
      const old = client.getQueryData<Followed>(key);
      return grown(old, await tailOf(filters, old?.place ?? "", signal));
    },
    enabled: !paused,
    refetchInterval: EVERY_MS,
    refetchOnMount: "always",
    gcTime: 0,
  });
  const rows = data?.rows;
  useEffect(() => {
    if (rows) onRows(rows);
  }, [rows, onRows]);
  return (
    <section aria-label="Requests as they end">
      <div className="mb-2 flex flex-wrap items-center gap-2 text-sm text-soft">
        <button type="button" className="button gap-1.5" aria-pressed={paused} onClick={() => setPaused(!paused)}>
          <Icon name={paused ? "play" : "pause"} />
          {paused ? "Resume" : "Pause"}
        </button>
        <p role="status">
          {paused ? "Paused. Requests that end meanwhile appear when it is resumed." : "In the order in which they end, the newest first."} {data?.cut && `The newest ${KEPT} are kept here.`}
        </p>
      </div>
      {missing && (
        <p className="mb-2 text-sm text-warn" data-unknown>
          Requests that ended {since(missing)} are not in the ledger yet and are missing here.
        </p>
      )}
      {error && (
        <p role="alert" className="mb-2 rounded-md bg-bad-bg px-3 py-2 text-sm text-bad">
          {error.message} It is tried again every two seconds; what ends meanwhile is not lost.
        </p>
      )}
      {data && data.rows.length > 0 ? (
        <List rows={data.rows} columns={columns} ended gaps={data.gaps} onOpen={open} />
      ) : data ? (
        <p className="panel p-10 text-center text-sm text-soft">{missing ? "Unknown." : "No recent request matches. The next one that does appears here as it ends."}</p>
      ) : (
        !error && <div className="skeleton h-96" />
      )}
    </section>
  );
}
