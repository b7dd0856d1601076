import { useState, type ReactNode } from "react";
import { useNarrow } from "../lib/useNarrow";
import { Icon } from "./icons";

/** Cards at first on a phone: a dozen is a few screens, two hundred are a hundred. */
const CARDS = 12;
/** Rows at first, and more with each press: thousands at once keep the page busy for seconds. */
const ROWS = 500;

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
  /** How many there are in all, where not all were read. */
  of?: number;
}

const exact = (n: number): string => n.toLocaleString("en");

/** Several columns may have one label, with units that tell them apart. */
const keyOf = <T,>({ label, unit = "" }: Column<T>): string => `${label} ${unit}`;

/** Of so many rows how many are shown, and after the next press. */
export const steps = (all: number, wanted: number): { most: number; next: number } => {
  const most = Math.min(all, wanted);
  return { most, next: Math.min(all, (Math.floor(most / ROWS) + 1) * ROWS) };
};

/** Sorts by what a column says; rows without it come last either way. */
function sortRows<T>(rows: readonly T[], by: NonNullable<Column<T>["by"]>, descending: boolean): T[] {
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
export function Table<T>({ label, rows, columns, id, empty, className = "max-h-[70dvh]", sortedBy, of = rows.length }: Props<T>) {
  const [sort, setSort] = useState(sortedBy ?? null);
  const by = sort ? columns[sort.column]?.by : undefined;
  const sorted = by ? sortRows(rows, by, sort!.descending) : rows;
  const narrow = useNarrow();
  const [asked, setAsked] = useState(0);
  const { most, next } = steps(rows.length, Math.max(asked, narrow ? CARDS : ROWS));
  const shown = sorted.slice(0, most);
  if (rows.length === 0) return <div className="panel p-6 text-center text-sm text-soft">{empty}</div>;
  const press = (column: number) => setSort((old) => ({ column, descending: old?.column === column ? !old.descending : (columns[column]?.right ?? false) }));
  return (
    <div className={`panel overflow-auto max-sm:max-h-none print:max-h-none print:overflow-visible ${className}`} role="region" aria-label={label} tabIndex={0}>
      {/* On a phone each row is a card (app.css); the roles keep it a table for those who listen. */}
      <table role="table" className="cards w-full border-collapse text-sm">
        <thead role="rowgroup">
          <tr role="row" className="text-2xs text-faint">
            {columns.map((column, i) => {
              const current = sort?.column === i;
              return (
                <th
                  key={keyOf(column)}
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
            <tr key={id(row)} role="row" className="border-t border-line hover:bg-raised/50 print:break-inside-avoid" data-row={id(row)}>
              {columns.map((column, i) => {
                const look = `px-3 py-1.5 ${column.right ? "text-right whitespace-nowrap" : "text-left"} ${column.className ?? ""}`;
                return i === 0 ? (
                  <th key={keyOf(column)} scope="row" role="rowheader" className={`${look} font-medium`}>
                    {column.cell(row)}
                  </th>
                ) : (
                  <td key={keyOf(column)} role="cell" className={look} data-label={column.unit ? `${column.label}, ${column.unit}` : column.label}>
                    {/* One box, so that a card sets it beside its label as a whole. */}
                    <div>{column.cell(row)}</div>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
      {(shown.length < rows.length || rows.length < of) && (
        <p className="sticky left-0 flex flex-wrap items-center gap-3 border-t border-line p-3 text-sm text-soft">
          {shown.length < rows.length && (
            <button type="button" className="button" onClick={() => setAsked(next)}>
              {next === rows.length ? `Show all ${exact(next)}` : `Show ${exact(next - most)} more`}
            </button>
          )}
          {(most > CARDS || next < rows.length) && `${exact(most)} of ${exact(of)}`}
          {of > rows.length && ` · only the first ${exact(rows.length)} are sorted and searched here; the API has all`}
        </p>
      )}
    </div>
  );
}
