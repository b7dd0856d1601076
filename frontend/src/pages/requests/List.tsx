import { Fragment, type ReactNode } from "react";
import type { LedgerRow } from "../../api/requests";
import { Icon } from "../../components/icons";
import { clock, compact, count, day, duration, NONE, oneZone, text, utc, zone } from "../../lib/format";
import { COLUMNS, ORDERS, type ColumnId } from "./columns";
import { Outcome, Slo } from "./Outcome";

const took = (ms: number | null): string => text(duration(ms ?? undefined));

interface Cell {
  right?: boolean;
  /** Not on a phone: the row has it elsewhere, or it has no room. */
  wide?: boolean;
  show: (row: LedgerRow) => ReactNode;
}

const CELLS: Record<ColumnId, Cell> = {
  outcome: {
    show: (row) => (
      <>
        <Outcome outcome={row.outcome} reason={row.reason} />
        <span className="block max-w-40 truncate text-2xs text-faint sm:hidden">
          {row.tenant}, {row.tier}
        </span>
      </>
    ),
  },
  tenant: { wide: true, show: (row) => <span title={row.entitlement}>{row.tenant}</span> },
  tier: { wide: true, show: (row) => row.tier },
  waited: { right: true, show: (row) => took(row.queue_ms) },
  ttft: { right: true, show: (row) => took(row.ttft_ms) },
  total: { right: true, show: (row) => took(row.total_ms) },
  tokens: {
    right: true,
    show: (row) => (
      <>
        {compact(row.input_tokens || row.input_tokens_est)} <span className="text-faint">·</span> <span className="inline-block min-w-10">{row.outcome === "refused" ? NONE : count(row.output_tokens ?? undefined)}</span>
      </>
    ),
  },
  slo: { show: (row) => <Slo met={row.slo_met} /> },
  backend: { show: (row) => <span className="text-soft">{row.backend || NONE}</span> },
  entitlement: { wide: true, show: (row) => row.entitlement },
  key: { wide: true, show: (row) => <span className="font-mono text-xs">{row.key_id}</span> },
  pool: { wide: true, show: (row) => row.pool || NONE },
  model: { wide: true, show: (row) => row.model || NONE },
  policy: { wide: true, show: (row) => row.policy || NONE },
};

function Line({ row, at, columns, zoned, onOpen }: { row: LedgerRow; at: number; columns: readonly ColumnId[]; zoned: boolean; onOpen: () => void }) {
  return (
    <tr className="cursor-pointer border-t border-line hover:bg-raised/60" onClick={onOpen}>
      <td className="px-3 py-1.5 whitespace-nowrap max-sm:px-2" title={utc(at)}>
        <span className="hidden text-faint sm:inline">{day(at)} </span>
        {clock(at)}
        {zoned && <span className="text-faint"> {zone(at)}</span>}
      </td>
      <th scope="row" className="px-3 text-left font-normal max-sm:px-2">
        <button
          type="button"
          className="link font-mono text-xs whitespace-nowrap"
          title={row.request_id}
          onClick={(event) => {
            event.stopPropagation();
            onOpen();
          }}
          aria-label={`…${row.request_id.slice(-8)}, open details`}
        >
          …{row.request_id.slice(-8)}
        </button>
      </th>
      {columns.map((id) => {
        const cell = CELLS[id];
        return (
          <td key={id} className={`max-w-48 truncate px-3 max-sm:px-2 max-sm:py-1.5 ${cell.right ? "text-right whitespace-nowrap" : ""} ${cell.wide ? "max-sm:hidden" : ""}`}>
            {cell.show(row)}
          </td>
        );
      })}
    </tr>
  );
}

interface ListProps {
  rows: readonly LedgerRow[];
  columns: readonly ColumnId[];
  /** By when they ended instead of when they came. */
  ended?: boolean;
  order?: string;
  /** Missing: the order cannot be chosen. */
  onOrder?: (order: string) => void;
  /** Shown until what was asked for is there. */
  old?: boolean;
  /** Rows below which some are missing. */
  gaps?: readonly string[];
  onOpen: (id: string) => void;
}

/** Ended requests as a table. */
export function List({ rows, columns, ended = false, order = "", onOrder, old = false, gaps = [], onOpen }: ListProps) {
  const atOf = (row: LedgerRow): number => Date.parse(ended ? row.done_at : row.received_at) / 1000;
  const timeZone = oneZone(rows.map(atOf));
  const head = "sticky top-0 z-1 bg-panel px-3 py-2 font-medium whitespace-nowrap";
  return (
    <div className={`panel overflow-x-auto ${old ? "opacity-60" : ""}`} role="region" aria-label="Ended requests" aria-busy={old} tabIndex={0}>
      <table className="w-full border-collapse text-sm">
        <thead>
          <tr className="text-2xs text-faint">
            <th scope="col" className={`${head} text-left`}>
              {ended ? "Ended" : "Received"} {timeZone && <span className="font-normal max-sm:block">{timeZone}</span>}
            </th>
            <th scope="col" className={`${head} text-left`}>Request</th>
            {columns.map((id) => {
              const { right, wide } = CELLS[id];
              const by = ORDERS[id];
              const label = COLUMNS.find((column) => column.id === id)!.label;
              return (
                <th key={id} scope="col" aria-sort={by && by === order ? "descending" : undefined} className={`${head} ${right ? "text-right" : "text-left"} ${wide ? "max-sm:hidden" : ""}`}>
                  {by && onOrder ? (
                    <button type="button" className={`inline-flex items-center gap-1 hover:text-ink ${by === order ? "text-ink" : ""}`} title={by === order ? "Back to the newest first" : "The largest first"} onClick={() => onOrder(by === order ? "" : by)}>
                      {by === order && <Icon name="down" />}
                      {label}
                    </button>
                  ) : (
                    label
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <Fragment key={row.request_id}>
                <Line row={row} at={atOf(row)} columns={columns} zoned={!timeZone} onOpen={() => onOpen(row.request_id)} />
                {gaps.includes(row.request_id) && (
                  <tr className="border-t border-line bg-warn-bg text-sm">
                    <td colSpan={columns.length + 2} className="px-3 py-1.5 text-ink">
                      More requests ended here than can be followed. Those left out are in the list that is not followed.
                    </td>
                  </tr>
                )}
              </Fragment>
          ))}
        </tbody>
      </table>
    </div>
  );
}
