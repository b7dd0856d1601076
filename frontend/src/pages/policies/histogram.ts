/** Where bars and borders of a length histogram stand, in [0, 1] of its width and height. Pure. */

import type { Lengths } from "../../api/operate";

export interface Bar {
  left: number;
  right: number;
  low: number;
  high: number;
  recent: number;
  sample: number;
}

export interface Picture {
  bars: Bar[];
  /** Lower and upper border of each queue. */
  queues: { left: number; right: number; low: number; high: number; share: number }[];
  ticks: { at: number; label: string }[];
  requests: number;
}

const label = (tokens: number): string => (tokens >= 1000 ? `${Number((tokens / 1024).toPrecision(2))}k` : String(tokens));

/** Heights are shares of each series' highest bar, so that both shapes can be compared; lengths are logarithmic. */
export function picture({ edges, recent, sample, queues }: Pick<Lengths, "edges" | "recent" | "sample" | "queues">): Picture {
  const low = edges[0];
  const high = edges.at(-1);
  if (low === undefined || high === undefined || recent.length === 0) return { bars: [], queues: [], ticks: [], requests: 0 };
  const from = Math.log2(low);
  const span = Math.log2(high) - from;
  const at = (tokens: number) => Math.min(1, Math.max(0, (Math.log2(Math.max(1, tokens)) - from) / span));
  const tops = [recent, sample].map((counts) => Math.max(1, ...counts));
  const total = recent.reduce((a, b) => a + b, 0);
  const bars = recent.map((count, i): Bar => ({ left: at(edges[i]!), right: at(edges[i + 1]!), low: edges[i]!, high: edges[i + 1]!, recent: count / tops[0]!, sample: sample[i]! / tops[1]! }));
  // A bin that a border cuts counts where its middle lies: bins are a third of an octave wide.
  const within = ([first, last]: [number, number]) => recent.reduce((sum, count, i) => sum + (Math.sqrt(edges[i]! * edges[i + 1]!) >= first && Math.sqrt(edges[i]! * edges[i + 1]!) <= last ? count : 0), 0);
  const ticks = Array.from({ length: 19 }, (_, power) => 2 ** power)
    .filter((tokens) => tokens >= low && tokens <= high)
    .map((tokens) => ({ at: at(tokens), label: label(tokens) }));
  const every = Math.ceil(ticks.length / 9);
  return {
    bars,
    queues: queues.map((queue) => ({ left: at(queue[0]), right: at(queue[1] + 1), low: queue[0], high: queue[1], share: total ? within(queue) / total : 0 })),
    ticks: ticks.filter((_, i) => i % every === 0),
    requests: total,
  };
}
