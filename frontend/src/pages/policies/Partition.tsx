import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import type { Lengths } from "../../api/operate";
import { category } from "../../charts/palette";
import { compact, percent, text } from "../../lib/format";
import { useDark } from "../../lib/theme";
import { Failed, Waiting } from "../tenants/parts";
import { picture } from "./histogram";

const WIDTH = 1000;
const HEIGHT = 160;

/** How long prompts are, and where the serving policy cuts its queues. */
export function Partition({ pool }: { pool: string }) {
  const dark = useDark();
  const { data, error, refetch } = useQuery({ queryKey: ["lengths", pool], queryFn: ({ signal }) => get<Lengths>(`pools/${pool}/lengths`, {}, signal), refetchInterval: 60_000, placeholderData: keepPreviousData });
  if (error) return <Failed error={error} retry={() => void refetch()} />;
  if (!data) return <Waiting />;
  const { bars, queues, ticks, levels, requests } = picture(data);
  const between = 1 - queues.reduce((all, queue) => all + (queue.share ?? 0), 0);
  const sampled = data.sample.reduce((a, b) => a + b, 0);
  const top = levels.at(-1)?.share;
  const said = `Prompt lengths of pool ${pool}${queues.length ? `, cut into ${queues.length} queues` : ""}; bars are shares of requests, on an axis up to ${text(percent(top))}`;
  return (
    <section className="panel p-3" aria-labelledby="partition">
      <h2 id="partition" className="text-sm font-semibold">
        Prompt lengths and queues
      </h2>
      <p className="text-2xs text-faint">
        Share of requests by prompt tokens (logarithmic axis): {compact(requests)} requests of the last hour (bars) and {compact(sampled)} of the long-term sample (line).
      </p>
      {bars.length === 0 ? (
        <p className="py-10 text-center text-sm text-faint">No request has been processed yet.</p>
      ) : (
        <div className="mt-3 grid grid-cols-[auto_minmax(0,1fr)] gap-x-1.5 text-2xs text-faint">
          <p className="col-span-2 mb-2">% of requests per bar</p>
          <div className="relative w-9 whitespace-nowrap" aria-hidden="true">
            {levels.map(({ at, share }) => (
              <span key={share} className="absolute right-0 translate-y-1/2 leading-none" style={{ bottom: `${at * 100}%` }}>
                {Number((share * 100).toPrecision(2))} %
              </span>
            ))}
          </div>
          <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" className="h-40 w-full overflow-visible" role="img" aria-label={said}>
            {queues.map((queue, i) => (
              <rect key={queue.low} x={queue.left * WIDTH} width={Math.max(2, (queue.right - queue.left) * WIDTH)} y="0" height={HEIGHT} fill={category(i, dark)} opacity="0.16" />
            ))}
            {levels.map(({ at, share }) => (
              <line key={share} x1="0" x2={WIDTH} y1={(1 - at) * HEIGHT} y2={(1 - at) * HEIGHT} stroke={at ? "var(--line)" : "var(--edge)"} vectorEffect="non-scaling-stroke" />
            ))}
            {bars.map((bar) => (
              <rect key={bar.low} x={bar.left * WIDTH + 1} width={(bar.right - bar.left) * WIDTH - 2} y={(1 - bar.recent) * HEIGHT} height={bar.recent * HEIGHT} fill="var(--accent)" opacity="0.8" />
            ))}
            {sampled > 0 && <path d={bars.map((bar, i) => `${i ? "L" : "M"}${((bar.left + bar.right) / 2) * WIDTH} ${(1 - bar.sample) * HEIGHT}`).join("")} fill="none" stroke={category(1, dark)} strokeWidth="2" vectorEffect="non-scaling-stroke" />}
            {queues.map((queue) => (
              <line key={queue.low} x1={queue.left * WIDTH} x2={queue.left * WIDTH} y1="0" y2={HEIGHT} stroke="var(--ink)" strokeDasharray="4 3" vectorEffect="non-scaling-stroke" />
            ))}
          </svg>
          <div className="relative col-start-2 mt-1 h-4" aria-hidden="true">
            {ticks.map((tick) => (
              <span key={tick.label} className="absolute" style={tick.at > 0.95 ? { right: 0 } : { left: `${tick.at * 100}%` }}>
                {tick.label}
              </span>
            ))}
          </div>
          <p className="col-start-2 text-center">prompt tokens</p>
        </div>
      )}
      {queues.length > 0 ? (
        <ul className="mt-2 flex flex-wrap gap-x-4 gap-y-1 text-2xs text-soft">
          {queues.map((queue, i) => (
            <li key={queue.low} className="flex items-center gap-1.5">
              <span className="size-2.5 rounded-xs" style={{ background: category(i, dark) }} />
              {queue.low} to {queue.high} tokens, {text(percent(queue.share))}
            </li>
          ))}
          {between >= 0.005 && <li>outside these ranges, {text(percent(between))}: a request that fits no queue opens a new one</li>}
        </ul>
      ) : (
        bars.length > 0 && <p className="mt-2 text-2xs text-soft">The active policy does not divide queues by prompt length.</p>
      )}
    </section>
  );
}
