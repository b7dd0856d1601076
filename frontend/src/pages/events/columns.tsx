import type { Happened } from "../../api/events";
import { badgeOf } from "../../charts/marks";
import { Badge } from "../../components/Badge";
import type { Column } from "../../components/Table";
import { clock, day, inZone, moment, oneZone, utc } from "../../lib/format";

export const atOf = (row: Happened): number => Date.parse(row.at) / 1000;
export const idOf = (row: Happened): string => `${row.at} ${row.kind} ${row.subject} ${row.line}`;

/** When, what kind, what and by whom. The zone stands once in the head, unless the rows are not all in one. */
export function eventColumns(rows: readonly Happened[], beforeActor: readonly Column<Happened>[] = []): Column<Happened>[] {
  const zoned = oneZone(rows.map(atOf));
  const time = (s: number) => (zoned ? `${day(s)}, ${clock(s)}` : moment(s));
  return [
    { label: "Time", unit: zoned, className: "whitespace-nowrap", cell: (row) => <time title={utc(atOf(row))}>{time(atOf(row))}</time> },
    { label: "Kind", cell: (row) => <Badge tone={badgeOf(row)}>{row.kind}</Badge> },
    { label: "Event", className: "min-w-72", cell: (row) => inZone(row.line) },
    ...beforeActor,
    { label: "By", cell: (row) => row.actor || "–" },
  ];
}
