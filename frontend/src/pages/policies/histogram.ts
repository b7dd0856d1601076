/** Where bars and borders of a length histogram stand, in [0, 1] of its width and height. Pure. */

import type { Lengths } from "../../api/operate";

export interface Bar {
  left: number;
  right: number;
  low: number;
  high: number;
  /** Height of its share of the series' requests, against the axis' top. */
  recent: number;
  sample: number;
}

interface Picture {
  bars: Bar[];
  /** Lower and upper border of each queue. */
  queues: { left: number; right: number; low: number; high: number; share: number }[];
  ticks: { at: number; label: string }[];
  /** The axis of heights, from nothing to its top: shares of a series' requests. */
  levels: { at: number; share: number }[];
  requests: number;
}

const label = (tokens: number): string => (tokens >= 1000 ? `${Number((tokens / 1024).toPrecision(2))}k` : String(tokens));

const MOST_STEPS = 4;
/** The smallest of 1, 2, 5, 10, 20… % in which so much is reached in a few steps. */
function step(share: number): number {
  const least = share / MOST_STEPS;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5].map((digit) => digit * power).find((one) => one >= least) ?? 10 * power;
}

/** Heights are shares of each series' requests, on one axis, so that both can be compared; lengths are logarithmic. */
export function picture({ edges, recent, sample, queues }: Pick<Lengths, "edges" | "recent" | "sample" | "queues">): Picture {
  const low = edges[0];
  const high = edges.at(-1);
  if (low === undefined || high === undefined || recent.length === 0) return { bars: [], queues: [], ticks: [], levels: [], requests: 0 };
  const from = Math.log2(low);
  const span = Math.log2(high) - from;
  const at = (tokens: number) => Math.min(1, Math.max(0, (Math.log2(Math.max(1, tokens)) - from) / span));
  const [total, sampled] = [recent, sample].map((counts) => counts.reduce((a, b) => a + b, 0)) as [number, number];
  const highest = Math.max(...recent.map((count) => count / (total || 1)), ...sample.map((count) => count / (sampled || 1)));
  const every = highest > 0 ? step(highest) : 1;
  const steps = Math.max(1, Math.ceil(highest / every - 1e-9));
  const height = (count: number, of: number) => (of ? count / of / (steps * every) : 0);
  const bars = recent.map((count, i): Bar => ({ left: at(edges[i]!), right: at(edges[i + 1]!), low: edges[i]!, high: edges[i + 1]!, recent: height(count, total), sample: height(sample[i]!, sampled) }));
  // A bin that a border cuts counts where its middle lies: bins are a third of an octave wide.
  const within = ([first, last]: [number, number]) => recent.reduce((sum, count, i) => sum + (Math.sqrt(edges[i]! * edges[i + 1]!) >= first && Math.sqrt(edges[i]! * edges[i + 1]!) <= last ? count : 0), 0);
  const ticks = Array.from({ length: 19 }, (_, power) => 2 ** power)
    .filter((tokens) => tokens >= low && tokens <= high)
    .map((tokens) => ({ at: at(tokens), label: label(tokens) }));
  const shown = Math.ceil(ticks.length / 9);
  return {
    bars,
    queues: queues.map((queue) => ({ left: at(queue[0]), right: at(queue[1] + 1), low: queue[0], high: queue[1], share: total ? within(queue) / total : 0 })),
    ticks: ticks.filter((_, i) => i % shown === 0),
    levels: Array.from({ length: steps + 1 }, (_, i) => ({ at: i / steps, share: i * every })),
    requests: total,
  };
}
