import { memo, useMemo, type ReactNode } from "react";
import { columns, type Pick } from "../../charts/columns";
import { Sparkline } from "../../charts/Sparkline";
import type { Point, Snapshot } from "../../feed/types";
import { Figure } from "../../components/Figure";
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

interface TileProps {
  label: string;
  value: Value;
  alert?: boolean;
  spark: (number | null)[];
  top?: number;
  title?: string;
  children: ReactNode;
}

const Tile = memo(function Tile({ label, value, alert, spark, top, title, children }: TileProps) {
  return (
    <div className="tile panel relative min-w-0 overflow-hidden px-3 py-2.5" title={title}>
      <dt className="label truncate">{label}</dt>
      <dd className={`mt-0.5 text-[1.6rem] leading-8 font-semibold tracking-tight ${alert ? "text-bad" : "text-ink"}`}>
        <Figure {...value} />
      </dd>
      <dd className="mt-0.5 min-h-4 text-2xs text-soft lg:truncate">{children}</dd>
      <Sparkline values={spark} top={top} className="pointer-events-none absolute top-2 right-2.5 h-5 w-[36%] md:top-2.5 md:h-8 text-accent opacity-80" />
    </div>
  );
});

/** The pool in eight figures. `unknown`: what stands under each of them while nothing is known ("unknown since ..."). */
export function Headline({ snapshot, history, unknown }: { snapshot: Snapshot; history: readonly Point[]; unknown?: string | undefined }) {
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
  const unseen = backends.filter((b) => b.unseen_since !== undefined || b.state === "ejected" || b.state === "probing").length;
  const allSlots = backends.reduce((sum, b) => sum + (b.slots ?? 0), 0);
  const gpus = backends.flatMap((b) => (b.gpu_util === undefined ? [] : [b.gpu_util]));
  const gpu = gpus.length ? gpus.reduce((a, b) => a + b, 0) / gpus.length : undefined;
  const kv = snapshot.kv_tokens && snapshot.kv_used !== undefined ? snapshot.kv_used / snapshot.kv_tokens : undefined;
  const partly = gpus.length < backends.length ? `mean of ${gpus.length} of ${backends.length} backends` : "mean of the backends";
  const unit = (n: number | undefined, name: string, format = count): Value => ({ value: format(n), unit: n === undefined ? "" : name });

  return (
    <dl data-unknown={unknown ? true : undefined} className="grid grid-cols-2 gap-2 md:grid-cols-4 wide:grid-cols-8">
      <Tile label="Queue depth" value={unit(queue.depth, "waiting")} spark={sparks.depth}>
        {unknown ?? (queue.oldest_s === undefined ? "" : queue.depth ? `oldest waits ${text(seconds(queue.oldest_s))}` : "no requests waiting")}
      </Tile>
      <Tile label="Running" value={unit(snapshot.running, `/ ${count(snapshot.slots)} slots`)} title={unseen > 0 ? `${count(snapshot.slots)} of ${count(allSlots)} slots are usable: ${unseen} of ${backends.length} backends do not answer` : undefined} spark={sparks.running} top={snapshot.slots || undefined}>
        {unknown ?? (unseen > 0 && allSlots > 0 ? `of ${count(allSlots)} slots; ${unseen} of ${backends.length} backends do not answer` : snapshot.slots ? `${text(percent((snapshot.running ?? 0) / snapshot.slots))} of the slots` : "no slots")}
      </Tile>
      <Tile label="Tokens out" value={unit(tokens.output, "tok/s")} spark={sparks.out}>
        {unknown ?? (tokens.input === undefined ? "" : `in ${compact(tokens.input)} tok/s`)}
      </Tile>
      <Tile label="TTFT p95" value={duration(ttft.p95)} spark={sparks.ttft} title="Time from the request to its first token, requests ended in the last minute">
        {unknown ?? `p50 ${text(duration(ttft.p50))} · p99 ${text(duration(ttft.p99))}`}
      </Tile>
      <Tile label="TTLT p95" value={duration(ttlt.p95)} spark={sparks.ttlt} title="Time from the request to its last token, requests completed in the last minute">
        {unknown ?? `p50 ${text(duration(ttlt.p50))} · p99 ${text(duration(ttlt.p99))}`}
      </Tile>
      <Tile label="SLO attainment" value={percent(slo.attainment)} spark={sparks.attainment} top={1} alert={slo.attainment !== undefined && slo.attainment < 0.9}>
        {unknown ?? (slo.total ? `${count(slo.violations ?? 0)} violations of ${count(slo.total)}, 1 min` : "no request with an SLO, 1 min")}
      </Tile>
      <Tile label="Refusals" value={unit(rates.refused, "/s", rate)} spark={sparks.refused}>
        {unknown ?? (topReason ? `most: ${words(topReason[0])}` : "none in the last minute")}
      </Tile>
      {snapshot.scope === "own" ? (
        <Tile label="Completed" value={unit(rates.completed, "/s", rate)} spark={sparks.completed}>
          {unknown ?? "in the last minute"}
        </Tile>
      ) : gpu === undefined ? (
        <Tile label="KV cache" value={percent(kv)} spark={sparks.gpu} top={1}>
          {unknown ?? "no GPU figures"}
        </Tile>
      ) : (
        <Tile label="GPU utilization" value={percent(gpu)} spark={sparks.gpu} top={1}>
          {kv === undefined || gpus.length < backends.length ? partly : `KV cache reserved ${text(percent(kv))}`}
        </Tile>
      )}
    </dl>
  );
}
