import { Badge, type Tone } from "../../components/Badge";
import { words } from "../../lib/format";

const tones: Record<string, Tone> = { completed: "good", refused: "warn", failed: "bad", cancelled: "plain" };

export function Outcome({ outcome, reason }: { outcome: string; reason: string }) {
  return (
    <span className="inline-flex items-center gap-x-1.5 whitespace-nowrap max-sm:flex-wrap">
      <Badge tone={tones[outcome]}>{outcome}</Badge>
      <span className="text-soft">{words(reason)}</span>
    </span>
  );
}

export function Slo({ met }: { met: boolean | null }) {
  if (met === null) return <span className="text-faint">n/a</span>;
  return met ? <span className="text-good">met</span> : <span className="font-medium text-bad">missed</span>;
}
