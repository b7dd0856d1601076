import type { ReactNode } from "react";

export type Tone = "good" | "warn" | "bad" | "plain";

const tones: Record<Tone, string> = {
  good: "bg-good-bg text-good",
  warn: "bg-warn-bg text-warn",
  bad: "bg-bad-bg text-bad",
  plain: "bg-raised text-soft",
};

/** A state in a word. The word says it; the colour only helps. */
export function Badge({ tone = "plain", title, children }: { tone?: Tone; title?: string; children: ReactNode }) {
  return (
    <span className={`inline-flex h-5 items-center rounded px-1.5 text-2xs font-medium whitespace-nowrap ${tones[tone]}`} title={title}>
      {children}
    </span>
  );
}
