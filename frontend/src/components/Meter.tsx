import type { Tone } from "./Badge";

const fills: Record<Tone, string> = { good: "bg-good", warn: "bg-amber", bad: "bg-bad", plain: "bg-accent" };

/** A bar for a ratio 0..1; empty and marked as unknown without one. */
export function Meter({ ratio, label, tone = "plain", className = "" }: { ratio: number | undefined; label: string; tone?: Tone; className?: string }) {
  const share = Math.min(1, Math.max(0, ratio ?? 0));
  const spoken =
    ratio === undefined
      ? { role: "img", "aria-label": `${label}: unknown` }
      : { role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(share * 100) };
  return (
    <div {...spoken} className={`h-1.5 overflow-hidden rounded-full bg-raised print:[print-color-adjust:exact] ${className}`}>
      <div className={`h-full rounded-full ${fills[tone]}`} style={{ width: `${share * 100}%` }} />
    </div>
  );
}
