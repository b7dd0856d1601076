import { useState, type ReactNode } from "react";
import { useNarrow } from "../lib/useNarrow";
import { Icon } from "./icons";

/** Cards at first on a phone: a dozen is a few screens, two hundred are a hundred. */
const CARDS = 12;

export interface Column<T> {
  label: string;
  unit?: string;
  right?: boolean;
  /** What it is sorted by; without it the column is not sortable. */
  by?: (row: T) => string | number | null | undefined;
  cell: (row: T) => ReactNode;
  className?: string;
}

interface Props<T> {
  label: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  /** The row's name; the first column is its header. */
  id: (row: T) => string;
  empty: ReactNode;
  /** Wrapped around nothing: the table fills its place and scrolls by itself. */
  className?: string;
  sortedBy?: { column: number; descending: boolean };
}

/** Sorts by what a column says; rows without it come last either way. */
export function sortRows<T>(rows: readonly T[], by: NonNullable<Column<T>["by"]>, descending: boolean): T[] {
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const x = by(a) ?? undefined;
    const y = by(b) ?? undefined;
    if (x === undefined || y === undefined) return x === y ? 0 : x === undefined ? 1 : -1;
    if (typeof x === "string" && typeof y === "string") return x.localeCompare(y, "en", { numeric: true }) * sign;
    return x === y ? 0 : (x < y ? -1 : 1) * sign;
  });
}

/** Rows with a sticky head, sortable by their columns. */
export function Table<T>({ label, rows, columns, id, empty, className = "max-h-[70dvh]", sortedBy }: Props<T>) {
  const [sort, setSort] = useState(sortedBy ?? null);
  const by = sort ? columns[sort.column]?.by : undefined;
  const sorted = by ? sortRows(rows, by, sort!.descending) : rows;
  const [all, setAll] = useState(false);
  const cut = useNarrow() && !all && rows.length > CARDS;
  const shown = cut ? sorted.slice(0, CARDS) : sorted;
  if (rows.length === 0) return <div className="panel p-6 text-center text-sm text-soft">{empty}</div>;
  const press = (column: number) => setSort((old) => ({ column, descending: old?.column === column ? !old.descending : (columns[column]?.right ?? false) }));
  return (
    <div className={`panel overflow-auto max-sm:max-h-none ${className}`} role="region" aria-label={label} tabIndex={0}>
      {/* On a phone each row is a card (app.css); the roles keep it a table for those who listen. */}
      <table role="table" className="cards w-full border-collapse text-sm">
        <thead role="rowgroup">
          <tr role="row" className="text-2xs text-faint">
            {columns.map((column, i) => {
              const current = sort?.column === i;
              return (
                <th
                  key={column.label}
                  scope="col"
                  role="columnheader"
                  aria-sort={current ? (sort.descending ? "descending" : "ascending") : undefined}
                  className={`sticky top-0 z-2 bg-panel px-3 py-2 font-medium whitespace-nowrap ${column.right ? "text-right" : "text-left"}`}
                >
                  {column.by ? (
                    <button type="button" className={`flex w-full items-center gap-1 hover:text-ink ${column.right ? "justify-end" : ""} ${current ? "text-ink" : ""}`} onClick={() => press(i)}>
                      <span className={`-mx-0.5 ${current ? "" : "invisible"} ${column.right ? "" : "order-1"}`}>
                        <Icon name={current && sort.descending ? "down" : "up"} />
                      </span>
                      {column.label}
                      {column.unit && <span className="font-normal">{column.unit}</span>}
                    </button>
                  ) : (
                    <>
                      {column.label ? column.label : <span className="sr-only">Actions</span>} {column.unit && <span className="font-normal">{column.unit}</span>}
                    </>
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {shown.map((row) => (
            <tr key={id(row)} role="row" className="border-t border-line hover:bg-raised/50" data-row={id(row)}>
              {columns.map((column, i) => {
                const look = `px-3 py-1.5 ${column.right ? "text-right whitespace-nowrap" : "text-left"} ${column.className ?? ""}`;
                return i === 0 ? (
                  <th key={column.label} scope="row" role="rowheader" className={`${look} font-medium`}>
                    {column.cell(row)}
                  </th>
                ) : (
                  <td key={column.label} role="cell" className={look} data-label={column.unit ? `${column.label}, ${column.unit}` : column.label}>
                    {/* One box, so that a card sets it beside its label as a whole. */}
                    <div>{column.cell(row)}</div>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
      {cut && (
        <button type="button" className="button m-3" onClick={() => setAll(true)}>
          Show all {rows.length}
        </button>
      )}
    </div>
  );
}
