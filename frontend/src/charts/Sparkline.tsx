import { memo } from "react";
import { ceiling, type Column } from "./columns";

interface Props {
  values: Column;
  /** Fixed top; else the largest value. */
  top?: number;
  className?: string;
}

const WIDTH = 100;
const HEIGHT = 28;

/** The shape of the last minutes, without axes. Says nothing that a figure beside it does not, so it is silent to readers. */
export const Sparkline = memo(function Sparkline({ values, top, className = "" }: Props) {
  const max = top ?? ceiling(values.reduce<number>((a, b) => Math.max(a, b ?? 0), 0));
  const step = WIDTH / Math.max(1, values.length - 1);
  let path = "";
  let pen = false;
  values.forEach((value, i) => {
    if (value === null) {
      pen = false;
      return;
    }
    path += `${pen ? "L" : "M"}${(i * step).toFixed(1)} ${(HEIGHT - 1 - (Math.min(value, max) / max) * (HEIGHT - 2)).toFixed(1)}`;
    pen = true;
  });
  return (
    <svg className={className} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      <path d={path} fill="none" stroke="currentColor" strokeWidth="1.25" vectorEffect="non-scaling-stroke" strokeLinejoin="round" />
    </svg>
  );
});
