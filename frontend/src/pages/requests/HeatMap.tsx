import { useRef, useState } from "react";
import type { Filters } from "../../api/requests";
import { Segmented } from "../../components/Segmented";
import { clock, compact, counted, day, seconds, text, zone } from "../../lib/format";
import { asked, between, ceilingOf, floorOf, levelLabel, MEASURES, rowsOf, timeOf, weight, type Heat, type Measure } from "./heat";

interface Corner {
  column: number;
  level: number;
}

/** When requests came and how long they took. Drag across a part of it to ask for the requests in it. */
export function HeatMap({ heat, measure, onMeasure, onChange }: { heat: Heat; measure: Measure; onMeasure: (measure: Measure) => void; onChange: (changes: Partial<Filters>) => void }) {
  const box = useRef<HTMLDivElement>(null);
  const [first, setFirst] = useState<Corner | null>(null);
  const [last, setLast] = useState<Corner | null>(null);
  const { low, high } = rowsOf(heat);
  const rows = high - low + 1;
  const most = Math.max(1, ...heat.cells.map((cell) => cell[2]!));
  const cells = new Map(heat.cells.map(([column, level, n]) => [`${column} ${level}`, n!]));
  const cornerAt = (event: { clientX: number; clientY: number }): Corner => {
    const { left, top, width, height } = box.current!.getBoundingClientRect();
    const within = (share: number, n: number) => Math.max(0, Math.min(n - 1, Math.floor(share * n)));
    return { column: within((event.clientX - left) / width, heat.bins), level: high - within((event.clientY - top) / height, rows) };
  };
  const part = first && last ? between(first, last) : null;
  const pointed = !first && last ? last : null;
  const known = heat.from !== null && heat.to !== null;
  const shown = part ?? (pointed && between(pointed, pointed));
  const inside = shown ? heat.cells.reduce((sum, [column, level, n]) => (column! >= shown.left && column! <= shown.right && level! >= shown.low && level! <= shown.high ? sum + n! : sum), 0) : 0;
  return (
    <section className="mt-3" aria-labelledby="heat">
      <div className="mb-1 flex flex-wrap items-center gap-3">
        <h2 id="heat" className="label">
          Duration over time
        </h2>
        <Segmented label="Duration" value={measure} options={MEASURES} onChange={onMeasure} />
        <span className="min-w-0 flex-1 truncate text-2xs text-faint" data-testid="heat-part">
          {shown && known
            ? `${clock(timeOf(heat, shown.left))} to ${clock(timeOf(heat, shown.right + 1))}, ${shown.low === shown.high ? levelLabel(heat, shown.low) : `${text(seconds(floorOf(heat, shown.low)))} to ${ceilingOf(heat, shown.high) === undefined ? "the longest" : text(seconds(ceilingOf(heat, shown.high)))}`}: ${counted(inside, "request")}`
            : "Drag across a part to show its requests. The query bar does the same by keyboard."}
        </span>
      </div>
      {known && heat.cells.length > 0 && (
        <p className="mb-1 flex items-center justify-end gap-1.5 text-2xs text-faint" aria-hidden="true">
          1
          <svg width="48" height="8" viewBox="0 0 4 1" preserveAspectRatio="none" className="rounded-xs bg-raised text-accent" aria-hidden="true">
            {[0, 1, 2, 3].map((i) => (
              <rect key={i} x={i} width="1" height="1" fill="currentColor" opacity={weight(Math.max(1, (most * i) / 3), most)} />
            ))}
          </svg>
          {counted(most, "request")} in a cell
        </p>
      )}
      {!known || heat.cells.length === 0 ? (
        <p className="rounded-md bg-raised p-4 text-center text-sm text-soft">No request that matches has this duration.</p>
      ) : (
        <div className="grid grid-cols-[auto_1fr] gap-x-2">
          <div className="relative w-16 text-right text-2xs text-faint" aria-hidden="true">
            {Array.from({ length: rows - 1 }, (_, i) => high - i).map((level, i) => (
              <span key={level} className="absolute right-0 -translate-y-1/2 whitespace-nowrap" style={{ top: `${((i + 1) / rows) * 100}%` }}>
                {text(seconds(floorOf(heat, level)))}
              </span>
            ))}
          </div>
          <div
            ref={box}
            role="img"
            aria-label={`Requests by time and duration: ${compact(heat.cells.reduce((sum, cell) => sum + cell[2]!, 0))}, at most ${compact(most)} in one cell.`}
            data-testid="heat"
            className="relative cursor-crosshair touch-none overflow-hidden rounded bg-raised select-none"
            style={{ height: `${rows * 14}px` }}
            onPointerDown={(event) => {
              event.currentTarget.setPointerCapture(event.pointerId);
              setFirst(cornerAt(event));
              setLast(cornerAt(event));
            }}
            onPointerMove={(event) => setLast(cornerAt(event))}
            onPointerLeave={() => !first && setLast(null)}
            onPointerCancel={() => {
              setFirst(null);
              setLast(null);
            }}
            onPointerUp={(event) => {
              if (first) onChange(asked(heat, between(first, cornerAt(event))));
              setFirst(null);
              setLast(null);
            }}
          >
            <svg aria-hidden="true" className="absolute inset-0 size-full text-accent" viewBox={`0 0 ${heat.bins} ${rows}`} preserveAspectRatio="none">
              {[...cells].map(([place, n]) => {
                const [column, level] = place.split(" ").map(Number) as [number, number];
                return <rect key={place} x={column} y={high - level} width="1.02" height="1.02" fill="currentColor" opacity={weight(n, most)} />;
              })}
              {shown && <rect x={shown.left} y={high - shown.high} width={shown.right - shown.left + 1} height={shown.high - shown.low + 1} fill="none" stroke="var(--ink)" strokeWidth="1" vectorEffect="non-scaling-stroke" />}
            </svg>
          </div>
          <span />
          <div className="mt-0.5 flex justify-between text-2xs text-faint" aria-hidden="true">
            {[0, heat.bins / 2, heat.bins].map((column) => (
              <span key={column}>
                {day(heat.from!) !== day(heat.to!) && `${day(timeOf(heat, column))}, `}
                {clock(timeOf(heat, column))} {column === 0 && zone(heat.from!)}
              </span>
            ))}
          </div>
        </div>
      )}
    </section>
  );
}
