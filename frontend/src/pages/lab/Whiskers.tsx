import { useLayoutEffect, useRef, useState } from "react";
import { category } from "../../charts/palette";
import { useDark } from "../../lib/theme";
import { axis, groupName, LABELS, shownFigure, shownInterval, type Figure, type Line } from "./lab";
import { policyName } from "./supposed";

const ROW = 18;
const GAP = 12;
const NARROW = 480;

/** Means with their 95 % intervals: one row per policy within each group. */
export function Whiskers({ groups, figure, policies }: { groups: Map<string, Line[]>; figure: Figure; policies: readonly string[] }) {
  const dark = useDark();
  // Drawn at the size at which it is seen: a picture that is scaled has letters too small on a phone, too large on a wall.
  const box = useRef<HTMLElement>(null);
  const [width, setWidth] = useState(640);
  useLayoutEffect(() => {
    const seen = new ResizeObserver(([entry]) => setWidth(Math.max(240, entry!.contentRect.width)));
    seen.observe(box.current!);
    return () => seen.disconnect();
  }, []);
  const [nameWidth, letters, steps] = width < NARROW ? [96, 14, 2] : [150, 22, 4];
  const [from, to] = axis([...groups.values()].flat(), figure);
  const x = (value: number) => nameWidth + ((value - from) / (to - from)) * (width - nameWidth - 26);
  const ticks = Array.from({ length: steps + 1 }, (_, i) => from + ((to - from) * i) / steps);
  let y = 4;
  const placed = [...groups].map(([group, rows]) => {
    const top = y;
    y += rows.length * ROW + GAP;
    return { group, rows, top };
  });
  const height = y + 16;
  return (
    <figure ref={box} className="m-0">
      <svg viewBox={`0 0 ${width} ${height}`} className="block h-auto w-full text-faint" role="img" aria-label={`${figure.label} of each policy with 95 % intervals; the table has the figures`}>
        {ticks.map((tick) => (
          <g key={tick}>
            <line x1={x(tick)} x2={x(tick)} y1="0" y2={y} stroke="var(--line)" />
            <text x={x(tick)} y={y + 12} textAnchor="middle" fill="currentColor" className="text-[11px]">
              {shownFigure(tick, figure.unit)}
            </text>
          </g>
        ))}
        {placed.map(({ group, rows, top }) => (
          <g key={group}>
            <text x="0" y={top + (rows.length * ROW) / 2 + 4} fill="var(--ink)" className="text-[12px]">
              {groupName(group).slice(0, letters)}
            </text>
            <line x1="0" x2={width} y1={top + rows.length * ROW + GAP / 2} y2={top + rows.length * ROW + GAP / 2} stroke="var(--line)" />
            {rows.map((row, i) => {
              const center = top + i * ROW + ROW / 2;
              const color = category(policies.indexOf(row.policy), dark);
              return (
                <g key={row.policy} stroke={color} fill={color}>
                  <title>{`${groupName(group)}, ${row.policy}: ${shownFigure(row.own.mean, figure.unit)} (${shownInterval(row.own, figure.unit)})`}</title>
                  <line x1={x(Math.max(from, row.own.low))} x2={x(Math.min(to, row.own.high))} y1={center} y2={center} strokeWidth="2.5" opacity="0.55" />
                  <circle cx={x(row.own.mean)} cy={center} r="4.5" stroke="none" />
                </g>
              );
            })}
          </g>
        ))}
      </svg>
      <figcaption className="mt-2 flex flex-wrap gap-x-4 gap-y-1 text-2xs text-soft">
        {policies.map((policy, i) => (
          <span key={policy} className="flex items-center gap-1.5">
            <span className="size-2.5 rounded-full" style={{ background: category(i, dark) }} />
            {LABELS[i]}: <span className="break-all">{policyName(policy)}</span>
          </span>
        ))}
      </figcaption>
    </figure>
  );
}
