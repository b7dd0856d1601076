interface Props {
  label: string;
  points: readonly { x: number; y: number }[];
}

const SIZE = 240;
const LEFT = 34;
const BOTTOM = 30;
const SPAN = SIZE - LEFT - 14;
const TICKS = [0, 0.25, 0.5, 0.75, 1];

/** A share against the share it should be: on the diagonal where it is right. */
export function Curve({ label, points }: Props) {
  const x = (value: number) => LEFT + value * SPAN;
  const y = (value: number) => SIZE - BOTTOM - value * (SIZE - BOTTOM - 8);
  const line = [{ x: 0, y: 0 }, ...points, { x: 1, y: 1 }];
  return (
    <svg viewBox={`0 0 ${SIZE} ${SIZE}`} className="mx-auto block h-auto w-full max-w-72 text-faint" role="img" aria-label={label}>
      {TICKS.map((tick) => (
        <g key={tick} className="text-[10px]" fill="currentColor">
          <line x1={x(tick)} x2={x(tick)} y1={y(0)} y2={y(1)} stroke="var(--line)" />
          <line x1={x(0)} x2={x(1)} y1={y(tick)} y2={y(tick)} stroke="var(--line)" />
          <text x={x(tick)} y={SIZE - BOTTOM + 13} textAnchor="middle">
            {Math.round(tick * 100)}
          </text>
          <text x={LEFT - 5} y={y(tick) + 3.5} textAnchor="end">
            {Math.round(tick * 100)}
          </text>
        </g>
      ))}
      <text x={x(0.5)} y={SIZE - 3} textAnchor="middle" fill="currentColor" className="text-[10px]">
        predicted quantile, %
      </text>
      <line x1={x(0)} y1={y(0)} x2={x(1)} y2={y(1)} stroke="currentColor" strokeDasharray="4 3" />
      <path d={line.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.y).toFixed(1)}`).join("")} fill="none" stroke="var(--accent)" strokeWidth="2" />
      {points.map((p) => (
        <circle key={p.x} cx={x(p.x)} cy={y(p.y)} r="3" fill="var(--accent)">
          <title>{`${Math.round(p.x * 100)} % predicted, ${(p.y * 100).toFixed(1)} % observed`}</title>
        </circle>
      ))}
    </svg>
  );
}
