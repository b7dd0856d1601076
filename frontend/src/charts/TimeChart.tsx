import { memo, useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import { clock, day, minute, zone } from "../lib/format";
import type { Mark } from "./marks";
import { ceiling, reach, reachAround, stack } from "./columns";
import { labelled } from "./labels";
import { blank, plainTick, type Panel, type Series } from "./panels";
import { Turns } from "./turns";

/** Of the plot; on a high wall more. */
const HEIGHT = "h-[172px]";
const WALL_HEIGHT = "h-[172px] [@media(min-width:2200px)_and_(min-height:1300px)]:h-[252px]";
const LEAST_WHOLE_TOP = 4;
const Y_AXIS = 56; // px
const RIGHT = 18; // of the plot
const STEPS = Array.from({ length: 13 }, (_, i) => i - 3).flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));
/** Of durations in ms: what people count in. */
const MS_STEPS = [...STEPS.filter((step) => step >= 1 && step < 10_000), 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_200_000, 3_600_000, 7_200_000];
const WHOLE_STEPS = STEPS.filter((step) => step >= 1);
const sync = uPlot.sync("dashboard");
const turns = new Turns();
const NEAR = "200px"; // a chart that is about to be scrolled into view is drawn already

interface Props {
  panel: Panel;
  from: number;
  to: number;
  dark: boolean;
  onZoom: (from: number, to: number) => void;
  onReset: () => void;
  wall?: boolean;
  /** What happened, as lines across the time. */
  marks?: readonly Mark[] | undefined;
}

const NEAR_PX = 6;

/** Points without a neighbour: a line has nothing to draw of them. */
function alone(column: ArrayLike<number | null | undefined> | undefined): number[] | null {
  const found: number[] = [];
  for (let i = 0; column && i < column.length; i++) if (column[i] != null && column[i - 1] == null && column[i + 1] == null) found.push(i);
  return found.length ? found : null;
}

function drawMarks(u: uPlot, marks: readonly Mark[]): void {
  const css = getComputedStyle(document.documentElement);
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.lineWidth = devicePixelRatio;
  u.ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const { at, tone } of marks) {
    const x = u.valToPos(at, "x", true);
    if (x < left || x > left + width) continue;
    u.ctx.strokeStyle = css.getPropertyValue(tone === "plain" ? "--faint" : `--${tone}`);
    u.ctx.beginPath();
    u.ctx.moveTo(x, top);
    u.ctx.lineTo(x, top + height);
    u.ctx.stroke();
  }
  u.ctx.restore();
}

/** Stacked series as running sums, the others as they are. */
function drawn(panel: Panel): uPlot.AlignedData {
  const sums = stack(panel.values.filter((_, i) => panel.series[i]!.stacked));
  let next = 0;
  return [panel.times, ...panel.values.map((column, i) => (panel.series[i]!.stacked ? sums[next++]! : column))];
}

function options(panel: Panel, { clientWidth, clientHeight }: HTMLElement, live: { current: Props }, paint: (plot: uPlot) => void): uPlot.Options {
  const css = getComputedStyle(document.documentElement);
  const faint = css.getPropertyValue("--faint");
  const line = css.getPropertyValue("--line");
  const font = `11px ${css.fontFamily}`;
  const axis: uPlot.Axis = { stroke: faint, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  const stacked = panel.series.flatMap((s, i) => (s.stacked ? [i + 1] : []));
  return {
    width: clientWidth || 300,
    height: clientHeight,
    padding: [8, RIGHT, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      points: { size: 6 },
      drag: { x: true, y: false, setScale: false },
      sync: { key: sync.key, setSeries: false, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
    },
    scales: {
      x: { range: () => [live.current.from, live.current.to] },
      y: {
        range: (_plot, min, max) => {
          const { top, whole, signed } = live.current.panel;
          const reached = reach(max ?? 0, live.current.panel.values.filter((_, i) => live.current.panel.series[i]!.dashed));
          if (signed) {
            const both = reachAround(min ?? 0, max ?? 0);
            return [-both, both];
          }
          return [0, top ?? Math.max(whole ? LEAST_WHOLE_TOP : 0, ceiling(reached))];
        },
      },
    },
    axes: [
      { ...axis, size: 28, gap: 8, space: 70, values: (plot, ticks, _axis, _space, step) => timeLabels(plot, ticks, step < 60 ? clock : step < 86_400 ? minute : day, font, live.current) },
      { ...axis, size: Y_AXIS, gap: 6, space: 34, incrs: panel.time ? MS_STEPS : panel.whole ? WHOLE_STEPS : STEPS, values: (_plot, ticks) => (blank(live.current.panel) ? [] : ticks.map((t) => plainTick((live.current.panel.tick ?? live.current.panel.format)(t)))) },
    ],
    series: [
      {},
      ...panel.series.map((s, i): uPlot.Series => ({
        label: s.label,
        stroke: s.color,
        auto: !s.dashed, // see reach
        width: s.stacked ? 1 : 1.5,
        dash: s.dashed ? [5, 4] : undefined,
        fill: stacked[0] === i + 1 ? `${s.color}66` : undefined,
        points: { show: live.current.panel.points === true && !s.dashed, filter: (u, index, show) => (show ? null : alone(u.data[index])), size: 5, fill: s.color },
      })),
    ],
    bands: stacked.slice(1).map((index, i) => ({ series: [index, stacked[i]!], fill: `${panel.series[index - 1]!.color}66` })),
    hooks: {
      setCursor: [paint],
      draw: [(plot) => drawMarks(plot, live.current.marks ?? [])],
      setSelect: [
        (plot) => {
          if (plot.select.width > 6) {
            const { left } = plot.select;
            live.current.onZoom(plot.posToVal(left, "x"), plot.posToVal(left + plot.select.width, "x"));
          }
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
    },
  };
}

/** Of the ticks of time. The zone is beside the first that has room for it: one near the edge would be cut. */
function timeLabels(plot: uPlot, ticks: number[], label: (t: number) => string, font: string, { from, to }: Props): string[] {
  plot.ctx.save();
  plot.ctx.font = font;
  const widthOf = (text: string) => plot.ctx.measureText(text).width;
  const made = labelled(ticks.map(label), ticks.map((t) => ((t - from) / (to - from)) * (plot.width - Y_AXIS - RIGHT)), ` ${zone(ticks[0])}`, plot.width - Y_AXIS, widthOf);
  plot.ctx.restore();
  return made;
}

const identity = (series: Series[], dark: boolean): string => dark + series.map((s) => s.label + s.color + s.dashed).join("|");

/** A chart over time. Values of the legend are those under the pointer, else the latest. */
export const TimeChart = memo(function TimeChart(props: Props) {
  const { panel, from, to, dark } = props;
  const live = useRef(props);
  live.current = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const values = useRef<(HTMLSpanElement | null)[]>([]);
  const moment = useRef<HTMLSpanElement>(null);

  const paint = (u: uPlot | null) => {
    const { panel } = live.current;
    const pointed = u?.cursor.idx ?? null;
    const row = pointed ?? panel.times.length - 1;
    panel.series.forEach((_, i) => {
      const value = panel.values[i]?.[row];
      const cell = values.current[i];
      const above = panel.series[i]!.dashed && value != null && u && value > (u.scales.y!.max ?? Infinity);
      if (cell) cell.textContent = value == null ? "–" : `${panel.format(value)}${above ? " ↑" : ""}`;
    });
    const left = u?.cursor.left ?? -1;
    const mark = u && left >= 0 ? live.current.marks?.findLast(({ at }) => Math.abs(u.valToPos(at, "x") - left) <= NEAR_PX) : undefined;
    if (moment.current) moment.current.textContent = mark ? `${clock(mark.at)} ${mark.line}` : pointed === null ? panel.unit : `${clock(panel.times[row] ?? 0)} ${zone(panel.times[row])}`;
  };

  // Charts out of sight are not drawn, the others a few per frame: sixteen at once would hold up a frame each second.
  const near = useRef(false);
  const late = useRef(false);
  const [draw] = useState(() => () => {
    late.current = false;
    const u = plot.current;
    u?.batch(() => u.setData(drawn(live.current.panel)));
    paint(u);
  });

  const look = identity(panel.series, dark);
  // biome-ignore lint/correctness/useExhaustiveDependencies: only another look makes another plot; the rest is read from `live`
  useEffect(() => {
    const element = box.current!;
    const u = new uPlot(options(live.current.panel, element, live, paint), drawn(live.current.panel), element);
    plot.current = u;
    sync.sub(u);
    const seen = new ResizeObserver(() => {
      const { clientWidth: width, clientHeight: height } = element;
      if (width && (width !== u.width || height !== u.height)) u.setSize({ width, height });
    });
    seen.observe(element);
    const sight = new IntersectionObserver(
      (entries) => {
        near.current = entries.at(-1)!.isIntersecting;
        if (near.current && late.current) turns.ask(draw);
      },
      { rootMargin: NEAR },
    );
    sight.observe(element);
    // On paper every chart is in sight.
    const print = () => {
      if (late.current) draw();
    };
    addEventListener("beforeprint", print);
    u.over.ondblclick = () => live.current.onReset();
    return () => {
      removeEventListener("beforeprint", print);
      seen.disconnect();
      sight.disconnect();
      turns.forget(draw);
      sync.unsub(u);
      u.destroy();
      plot.current = null;
    };
  }, [look]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: new points or another range are what there is to draw
  useEffect(() => {
    late.current = true;
    if (near.current) turns.ask(draw);
    else paint(plot.current);
  }, [panel, from, to, props.marks]);

  const empty = panel.values.every((column, i) => panel.series[i]!.dashed || column.every((v) => v === null || (panel.quiet && v === 0)));
  const latest = panel.series.map((s, i) => `${s.label} ${panel.values[i]?.at(-1) == null ? "unknown" : panel.format(panel.values[i]!.at(-1)!)}`);
  return (
    <section className="panel min-w-0 p-3" aria-label={panel.title}>
      <div className="flex items-baseline justify-between gap-2">
        <h3 className="shrink-0 text-sm font-medium">{panel.title}</h3>
        <span ref={moment} className="min-w-0 truncate text-2xs text-faint">
          {panel.unit}
        </span>
      </div>
      <div className="relative mt-1" role="img" aria-label={`${panel.title}, ${panel.unit}. Latest: ${latest.join(", ")}.`}>
        <div ref={box} className={props.wall ? WALL_HEIGHT : HEIGHT} />
        {empty && <p className="pointer-events-none absolute inset-0 grid place-items-center pb-6 pl-12 text-center text-sm text-faint"><span className="rounded bg-panel px-2 py-0.5">{panel.empty}</span></p>}
      </div>
      <ul className="mt-1.5 flex flex-wrap gap-x-3 gap-y-0.5 text-2xs text-soft" aria-hidden="true">
        {panel.series.map((s, i) => (
          <li key={s.label} className="flex items-center gap-1.5">
            <svg width="12" height="8" aria-hidden="true">
              <line x1="0" x2="12" y1="4" y2="4" stroke={s.color} strokeWidth={s.stacked ? 6 : 2} strokeDasharray={s.dashed ? "3 2" : undefined} />
            </svg>
            <span className="max-w-40 truncate">{s.label}</span>
            <span
              ref={(cell) => {
                values.current[i] = cell;
              }}
              className="min-w-6 text-right font-medium text-ink"
            />
          </li>
        ))}
      </ul>
    </section>
  );
});
