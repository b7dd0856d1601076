import type { Figure as Value } from "../lib/format";

/** A number with its unit set smaller. */
export function Figure({ value, unit, className = "" }: Value & { className?: string }) {
  return (
    <span className={`whitespace-nowrap ${className}`}>
      {value}
      {unit && <span className="ml-[0.2em] text-[0.75em] font-normal text-faint">{unit}</span>}
    </span>
  );
}
