import { memo, useMemo, type ReactNode } from "react";
import { columns, type Pick } from "../../charts/columns";
import { Sparkline } from "../../charts/Sparkline";
import type { Point, Snapshot } from "../../feed/types";
import { Figure } from "../../components/Figure";
import { asleep, attained, change, filled, late, missedSlo, missing, ms, over, points, refusedShare, SLO_LOW, slotsOf, targetsOf, type Limits, type Target } from "./verdict";
import { compact, count, duration, percent, ranked, rate, seconds, text, words, type Figure as Value } from "../../lib/format";

const SPARK_S = 300;

const picks = {
  depth: (p) => p.depth,
  running: (p) => p.running,
  out: (p) => p.out,
  ttft: (p) => p.ttft_p95,
  ttlt: (p) => p.ttlt_p95,
  attainment: (p) => p.attainment,
  refused: (p) => p.refused,
  gpu: (p) => p.gpu ?? p.kv,
  completed: (p) => p.completed,
} satisfies Record<string, Pick>;

type Name = keyof typeof picks;

type Tone = "warn" | "bad";
const inks: Record<Tone, string> = { warn: "text-warn", bad: "text-bad" };
const edges: Record<Tone, string> = { warn: "border-warn", bad: "border-bad" };

interface TileProps {
  label: string;
  value: Value;
  tone?: Tone | undefined;
  /** What it should be, and the alert rule's threshold. */
  target?: string | undefined;
  /** Against five minutes ago. */
  delta?: string | undefined;
  spark: (number | null)[];
  top?: number;
  title?: string;
  children: ReactNode;
}

const Tile = memo(function Tile({ label, value, tone, target, delta, spark, top, title, children }: TileProps) {
  return (
    <div className={`tile panel relative min-w-0 overflow-hidden px-3 py-2.5 ${tone ? edges[tone] : ""}`} data-tone={tone} title={title}>
      <dt className="label truncate">{label}</dt>
      <dd className={`mt-0.5 text-[1.6rem] leading-8 font-semibold tracking-tight ${tone ? inks[tone] : "text-ink"}`}>
        <Figure {...value} />
      </dd>
      <dd className={`mt-0.5 min-h-4 text-2xs ${tone ? inks[tone] : "text-soft"}`}>{children}</dd>
      <dd className="mt-0.5 flex min-h-4 flex-wrap justify-between gap-x-2 text-2xs text-faint">
        {target && <span>{target}</span>}
        {delta && <span title="Against five minutes ago">{delta}</span>}
      </dd>
      <Sparkline values={spark} top={top} className="pointer-events-none absolute top-2 right-2.5 h-5 w-[36%] md:top-2.5 md:h-8 text-accent opacity-80" />
    </div>
  );
});

/** "target premium 1.00 s"; while it is met, with what it is measured by: the figure above it is of all tiers. */
const aim = (one: Target | undefined): string | undefined =>
  one && (one.ms === undefined || late(one) ? `target ${one.tier} ${text(seconds(one.s))}` : `${one.tier} ${ms(one.ms)}, target ${text(seconds(one.s))}`);

/** The pool in eight figures. `unknown`: what stands under each of them while nothing is known ("unknown since ..."). */
export function Headline({ snapshot, history, unknown, limits }: { snapshot: Snapshot; history: readonly Point[]; unknown?: string | undefined; limits?: Limits | undefined }) {
  const sparks = useMemo(() => {
    const names = Object.keys(picks) as Name[];
    const { values } = columns(history, snapshot.at - SPARK_S, snapshot.at, names.map((name) => picks[name]));
    return Object.fromEntries(names.map((name, i) => [name, values[i]!])) as Record<Name, (number | null)[]>;
  }, [history, snapshot.at]);

  const { queue = {}, latency = {}, slo = {}, tokens_per_s: tokens = {}, rates = {} } = snapshot;
  const ttft = latency.ttft_ms ?? {};
  const ttlt = latency.ttlt_ms ?? {};
  const [topReason] = ranked(snapshot.refusals);
  const backends = Object.values(snapshot.backends ?? {});
  const room = slotsOf(snapshot);
  const gpus = backends.flatMap((b) => (b.gpu_util === undefined ? [] : [b.gpu_util]));
  const gpu = gpus.length ? gpus.reduce((a, b) => a + b, 0) / gpus.length : undefined;
  const kv = snapshot.kv_tokens && snapshot.kv_used !== undefined ? snapshot.kv_used / snapshot.kv_tokens : undefined;
  const partly = gpus.length < backends.length ? `mean of ${gpus.length} of ${backends.length} backends` : "mean of the backends";
  const unit = (n: number | undefined, name: string, format = count): Value => ({ value: format(n), unit: n === undefined ? "" : name });
  const delta = (name: Name, format: (value: number) => string) => (unknown ? undefined : change(history, snapshot.at, picks[name], format));
  const waits = limits?.queue_age;
  const promised = targetsOf(snapshot);
  const low = limits?.slo_attainment ?? SLO_LOW;
  const missed = missedSlo(snapshot, low);
  // A tier may miss its SLO where all requests together do not: then the figure above is not the one to look at.
  const short = missed !== undefined && !(slo.attainment !== undefined && slo.attainment < low);

  return (
    <dl data-unknown={unknown ? true : undefined} className="grid grid-cols-2 gap-2 md:grid-cols-4 wide:grid-cols-8">
      <Tile label="Queue depth" value={unit(queue.depth, "waiting")} spark={sparks.depth} tone={over(queue.oldest_s, waits)} target={waits === undefined ? undefined : `alert: oldest over ${waits} s`} delta={delta("depth", compact)}>
        {unknown ?? (queue.oldest_s === undefined ? "" : queue.depth ? `oldest waits ${text(seconds(queue.oldest_s))}` : "no requests waiting")}
      </Tile>
      <Tile label="Running" value={unit(snapshot.running, `/ ${count(room.all)} slots`)} spark={sparks.running} top={room.all || undefined} tone={room.missing > 0 ? (room.usable === 0 ? "bad" : "warn") : undefined} target={unknown || room.missing > 0 ? undefined : room.all ? `${count(room.usable)} of ${count(room.all)} usable` : undefined} delta={delta("running", compact)}>
        {unknown ?? (room.wakes !== undefined ? asleep(room.wakes, queue.depth) : room.missing > 0 ? missing(room, snapshot.at) : room.all ? filled(snapshot, room) : "no slots")}
      </Tile>
      <Tile label="Tokens out" value={unit(tokens.output, "tok/s")} spark={sparks.out} delta={delta("out", compact)}>
        {unknown ?? (tokens.input === undefined ? "" : `in ${compact(tokens.input)} tok/s`)}
      </Tile>
      <Tile label="TTFT p95" value={duration(ttft.p95)} spark={sparks.ttft} tone={late(promised.ttft)} target={aim(promised.ttft)} delta={delta("ttft", ms)} title="Time from the request to its first token, requests ended in the last minute. The target is the one that is missed most, or else the strictest.">
        {unknown ?? (late(promised.ttft) ? `${promised.ttft!.tier} at ${ms(promised.ttft!.ms!)}` : `p50 ${text(duration(ttft.p50))} · p99 ${text(duration(ttft.p99))}`)}
      </Tile>
      <Tile label="TTLT p95" value={duration(ttlt.p95)} spark={sparks.ttlt} tone={late(promised.ttlt)} target={aim(promised.ttlt)} delta={delta("ttlt", ms)} title="Time from the request to its last token, requests completed in the last minute">
        {unknown ?? `p50 ${text(duration(ttlt.p50))} · p99 ${text(duration(ttlt.p99))}`}
      </Tile>
      <Tile label="SLO attainment" value={percent(slo.attainment)} spark={sparks.attainment} top={1} tone={missed === undefined ? undefined : "bad"} target={`alert: below ${text(percent(low))}`} delta={delta("attainment", points)} title="Requests of the last minute that kept their SLO, of all asked: served, failed, and refused with 429 or 503">
        {unknown ?? (short ? missed : attained(slo))}
      </Tile>
      <Tile label="Refusals" value={unit(rates.refused, "/s", rate)} spark={sparks.refused} tone={over(refusedShare(slo), limits?.refusals)} target={limits?.refusals === undefined ? undefined : `alert: over ${text(percent(limits.refusals))}`} delta={delta("refused", rate)}>
        {unknown ?? (topReason ? `most: ${words(topReason[0])}` : "none in the last minute")}
      </Tile>
      {snapshot.scope === "own" ? (
        <Tile label="Completed" value={unit(rates.completed, "/s", rate)} spark={sparks.completed}>
          {unknown ?? "in the last minute"}
        </Tile>
      ) : gpu === undefined && !(unknown && history.some((point) => point.gpu !== undefined)) ? (
        <Tile label="KV cache" value={percent(kv)} spark={sparks.gpu} top={1}>
          {unknown ?? "no GPU figures"}
        </Tile>
      ) : (
        <Tile label="GPU utilization" value={percent(gpu)} spark={sparks.gpu} top={1}>
          {unknown ?? (kv === undefined || gpus.length < backends.length ? partly : `KV cache reserved ${text(percent(kv))}`)}
        </Tile>
      )}
    </dl>
  );
}
