import { memo } from "react";
import { Badge } from "../../components/Badge";
import { Meter } from "../../components/Meter";
import { since } from "../../components/Outages";
import type { BackendFigures, Snapshot } from "../../feed/types";
import { backendTones } from "../../lib/backend";
import { asleep } from "./verdict";
import { age, bytes, count, percent, text } from "../../lib/format";

const SCRAPE_LATE_S = 5;

function Use({ label, value, ratio, full }: { label: string; value: string; ratio: number | undefined; full?: number }) {
  return (
    <div className="min-w-0">
      <div className="flex justify-between gap-2 text-2xs">
        <span className="text-faint whitespace-nowrap">{label}</span>
        <span className="truncate text-ink">{value}</span>
      </div>
      <Meter ratio={ratio} label={label} tone={ratio !== undefined && full !== undefined && ratio > full ? "warn" : "plain"} className="mt-1" />
    </div>
  );
}

const Card = memo(function Card({ id, backend, at }: { id: string; backend: BackendFigures; at: number }) {
  const { state = "unknown", unseen_since: unseen, slots, running, kv_usage, gpu_util, gpu_mem_used_bytes: used, gpu_mem_total_bytes: all } = backend;
  const late = backend.observed_s === undefined ? undefined : at - backend.observed_s;
  const measured = slots !== undefined;
  return (
    <li className={`panel min-w-0 p-3 ${unseen !== undefined || state === "unknown" ? "unknown" : ""}`} data-backend={id} data-state={state}>
      <div className="flex items-center justify-between gap-2">
        <span className="truncate text-sm font-medium" title={id}>
          {id}
        </span>
        <Badge tone={unseen !== undefined && state === "ready" ? "warn" : backendTones[state]}>{state === "ready" && backend.unseen_since !== undefined ? "unseen" : state}</Badge>
      </div>
      <p className="mt-0.5 h-4 truncate text-2xs text-faint" title={backend.why}>
        {unseen !== undefined ? `unseen ${since({ since: unseen })}; ` : late !== undefined && late > SCRAPE_LATE_S ? `last figures ${age(late)} ago; ` : ""}
        {backend.why ?? ""}
      </p>
      {measured && (
        <>
          <div className="mt-2 grid grid-cols-[1fr_minmax(50%,auto)] gap-x-4 gap-y-2">
            <Use label="Slots" value={`${count(running)} / ${count(slots)}`} ratio={slots && running !== undefined ? running / slots : undefined} />
            <Use label="KV cache" value={text(percent(kv_usage))} ratio={kv_usage} full={0.97} />
            <Use label="GPU" value={text(percent(gpu_util))} ratio={gpu_util} />
            <Use label="GPU memory" value={used === undefined || all === undefined ? "–" : `${bytes(used).unit === bytes(all).unit ? bytes(used).value : text(bytes(used))} / ${text(bytes(all))}`} ratio={used !== undefined && all ? used / all : undefined} />
          </div>
          {backend.engine_running !== undefined && <dl className="mt-2.5 flex flex-wrap gap-x-4 gap-y-0.5 text-2xs text-faint">
            <div className="flex gap-1">
              <dt>out</dt>
              <dd className="text-ink">{count(backend.output_tokens_per_s)} tok/s</dd>
            </div>
            <div className="flex gap-1">
              <dt>in</dt>
              <dd className="text-ink">{count(backend.input_tokens_per_s)} tok/s</dd>
            </div>
            <div className="ml-auto flex gap-1" title="What the engine itself reports: requests in its batch, and in its own queue">
              <dt>engine</dt>
              <dd className="text-ink">
                {count(backend.engine_running)} running, {count(backend.engine_waiting)} waiting
              </dd>
            </div>
          </dl>}
        </>
      )}
    </li>
  );
});

/** The replicas, with why each is as it is. */
export function Backends({ snapshot, unknown }: { snapshot: Snapshot; unknown?: string | undefined }) {
  const list = Object.entries(snapshot.backends ?? {}).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  const ready = list.filter(([, backend]) => backend.state === "ready" && backend.unseen_since === undefined).length;
  return (
    <section aria-labelledby="backends-title">
      <h2 id="backends-title" className="mb-2 text-sm font-semibold">
        Backends{" "}
        <span className="font-normal text-faint">
          {unknown ? `${list.length}, ${unknown}` : `${ready} of ${list.length} ready`}
        </span>
      </h2>
      {list.length === 0 ? (
        <p className="panel p-6 text-center text-sm text-soft">
          {unknown ? `No backend, ${unknown}.` : snapshot.wakes_in_s === undefined ? "This pool has no backend, so nothing can run. Add one vLLM server to it." : `This pool is ${asleep(snapshot.wakes_in_s, snapshot.queue?.depth)}. It has no backend until a request for its model comes.`}
        </p>
      ) : (
        <ul className="grid grid-cols-[repeat(auto-fill,minmax(min(100%,21rem),1fr))] gap-2">
          {list.map(([id, backend]) => (
            <Card key={id} id={id} backend={backend} at={snapshot.at} />
          ))}
        </ul>
      )}
    </section>
  );
}
