import { memo, useMemo, useState } from "react";
import { ColorBook } from "../../charts/palette";
import { panels } from "../../charts/panels";
import { TimeChart } from "../../charts/TimeChart";
import { Segmented } from "../../components/Segmented";
import type { Point } from "../../feed/types";
import { clock } from "../../lib/format";
import { useDark } from "../../lib/theme";

const SHORTEST_S = 60;
const WINDOWS = [
  { value: 60, label: "1 min" },
  { value: 300, label: "5 min" },
  { value: 900, label: "15 min" },
] as const;

/** Colours of a pool's tenants and refusal reasons; they outlive a visit to another page. */
const books = new Map<string, { tenants: ColorBook; reasons: ColorBook }>();
function booksOf(pool: string) {
  let found = books.get(pool);
  if (!found) books.set(pool, (found = { tenants: new ColorBook(), reasons: new ColorBook() }));
  return found;
}

/** The last minutes, six charts on one time axis. Drag across one to look closer in all. */
export const Charts = memo(function Charts({ pool, history, at, own }: { pool: string; history: readonly Point[]; at: number; own: boolean }) {
  const dark = useDark();
  const [span, setSpan] = useState<number>(300);
  const [zoom, setZoom] = useState<[number, number] | null>(null);
  // A young history fills the width; what lies before it is not shown as empty time.
  const [from, to] = zoom ?? [Math.max(at - span, Math.min(history[0]?.at ?? at, at - SHORTEST_S)), at];
  const list = useMemo(() => panels({ points: history, from, to, dark, ...booksOf(pool) }), [history, from, to, dark, pool]);
  const zoomed = useMemo(() => (a: number, b: number) => setZoom([a, b]), []);
  const reset = useMemo(() => () => setZoom(null), []);
  return (
    <section aria-labelledby="charts-title">
      <div className="mb-2 flex flex-wrap items-center gap-2">
        <h2 id="charts-title" className="text-sm font-semibold">
          Over time
        </h2>
        <span className="hidden text-2xs text-faint lg:inline">Drag across a chart to zoom, double-click to go back</span>
        <div className="ml-auto flex items-center gap-2">
          {zoom && (
            <button type="button" className="button" onClick={reset}>
              {clock(zoom[0])} to {clock(zoom[1])}: reset
            </button>
          )}
          <Segmented
            label="Time shown"
            value={zoom ? null : span}
            options={WINDOWS}
            onChange={(value) => {
              setZoom(null);
              setSpan(value);
            }}
          />
        </div>
      </div>
      <div className="grid grid-cols-1 gap-2 md:grid-cols-2 xl:grid-cols-3 wide:grid-cols-3">
        {list.filter((panel) => !own || panel.id !== "usage").map((panel) => (
          <TimeChart key={panel.id} panel={panel} from={from} to={to} dark={dark} onZoom={zoomed} onReset={reset} />
        ))}
      </div>
    </section>
  );
});
