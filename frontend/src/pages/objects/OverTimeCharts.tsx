import { useMemo } from "react";
import { marksOf } from "../../charts/marks";
import { TimeChart } from "../../charts/TimeChart";
import type { Happened } from "../../api/events";
import type { Filters } from "../../api/requests";
import { moment, percent, text } from "../../lib/format";
import { useDark } from "../../lib/theme";
import { useExplored } from "../requests/useExplored";
import { Waiting } from "../tenants/parts";
import { endedAt, endOf, isWhole, panelsOf } from "./overTime";

interface Props {
  /** Of one object, with its time. */
  filters: Filters;
  now: number;
  /** From when on nothing reaches the ledger, if that is so. */
  until: number | undefined;
  events: readonly Happened[];
  onZoom: (from: number, to: number) => void;
  onReset: () => void;
}

/** An object's requests as lines over the time shown. Drag across one to look closer. */
export function OverTimeCharts({ filters, now, until, events, onZoom, onReset }: Props) {
  const dark = useDark();
  const { data, error } = useExplored(filters, true);
  const told = data?.over_time ?? undefined;
  const asked = useMemo(() => told && endedAt(told, until), [told, until]);
  const panels = useMemo(() => asked && panelsOf(asked, dark, now), [asked, dark, now]);
  const marks = useMemo(() => marksOf(events), [events]);
  if (error) return <p className="text-sm text-bad">The figures over time could not be read: {error.message}</p>;
  if (!asked || !panels) return <Waiting />;
  return (
    <div data-testid="over-time">
      <p className="mb-2 text-2xs text-soft">
        {data!.share < 1 && `Estimated from an even sample of ${text(percent(data!.share))} of the requests. `}
        {!isWhole(asked, now) && data!.searched_to && `Only requests since ${moment(Date.parse(data!.searched_to) / 1000)} were read; before that nothing is drawn. `}
        {told && !data!.searched_to && !isWhole(told, now) && "Nothing is drawn before the first request in the ledger. "}
        {marks.length > 0 && "Dashed lines are the events below. "}
        Requests are drawn once they ended, when they came; the newest steps miss those that still wait or run. Drag across a chart to zoom, double-click to go back.
      </p>
      <div className="grid grid-cols-1 gap-2 md:grid-cols-2 xl:grid-cols-3">
        {panels.map((panel) => (
          <TimeChart key={panel.id} panel={panel} from={asked.from} to={endOf(asked, now)} dark={dark} onZoom={onZoom} onReset={onReset} marks={marks} />
        ))}
      </div>
    </div>
  );
}
