import { useMutation, useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { useState } from "react";
import { attempt, type Backend, type EngineFound, type Pool } from "../../api/catalog";
import { send } from "../../api/client";
import { fieldsOf } from "../../components/form/fields";
import { Badge, type Tone } from "../../components/Badge";
import { since } from "../../components/Outages";
import { Icon } from "../../components/icons";
import { Empty } from "../../components/Shell";
import { notify } from "../../components/Notices";
import type { Column } from "../../components/Table";
import type { AdapterState, BackendFigures } from "../../feed/types";
import { backendState, backendTones } from "../../lib/backend";
import { compact, count, percent, text } from "../../lib/format";
import { user } from "../../lib/page";
import { useCatalog, useRefresh, useSnapshots } from "./data";
import { EffectsPanel } from "./EffectsPanel";
import { Confirm, LastingFor } from "./parts";
import { mayWrite, Resource } from "./Resource";
import { backendSpecs, options } from "./specs";

/** What was found at an engine's address, in a sentence. */
export function Found({ found }: { found: EngineFound }) {
  const good = found.reachable && found.ready;
  return (
    <p role="status" className={`flex gap-2 rounded-md px-3 py-2 text-sm ${good ? "bg-good-bg text-good" : found.reachable ? "bg-warn-bg text-warn" : "bg-bad-bg text-bad"}`}>
      <span className="mt-0.5 shrink-0">
        <Icon name={good ? "check" : "alert"} />
      </span>
      <span className="min-w-0 break-words">
        {found.reachable ? `It serves ${found.models.map((model) => model.id).join(", ") || "no model"}; ` : "No engine of this kind was found there: "}
        {found.why}
        {found.kv_tokens ? `. Its KV cache holds ${compact(found.kv_tokens)} tokens` : ""}.{found.used_by ? ` It is already backend ${found.used_by}.` : ""}
      </span>
    </p>
  );
}

export const lookAt = (url: string, api_key = "", engine = "vllm"): Promise<EngineFound> => send("POST", "engine-check", { url: url.trim(), api_key, engine });

/** The kinds of engine that a pool can name. */
export function EngineKinds({ value, onChange }: { value: string; onChange: (kind: string) => void }) {
  return (
    <select aria-label="Kind of engine" className="field h-9 w-auto" value={value} onChange={(event) => onChange(event.target.value)}>
      {fieldsOf("pools")("engine", "Kind of engine").options?.map((option) => (
        <option key={option.value} value={option.value} title={option.label}>
          {option.value}
        </option>
      ))}
    </select>
  );
}

/** Looks at an engine before its row is saved. */
function Look() {
  const [url, setUrl] = useState("");
  const [kind, setKind] = useState("vllm");
  const look = useMutation({ mutationFn: () => lookAt(url, "", kind) });
  return (
    <details className="rounded-lg border border-line bg-page p-3">
      <summary className="text-sm font-medium text-soft hover:text-ink">Inspect an engine</summary>
      <div className="mt-2 flex flex-wrap gap-2">
        <input
          aria-label="URL to inspect"
          className="field min-w-0 flex-1 basis-56"
          placeholder="http://10.0.0.7:8000"
          value={url}
          onChange={(event) => setUrl(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter") return;
            event.preventDefault(); // it looks; it does not save the form around it
            if (url.trim()) look.mutate();
          }}
        />
        <EngineKinds value={kind} onChange={setKind} />
        <button type="button" className="button" disabled={!url.trim() || look.isPending} onClick={() => look.mutate()}>
          {look.isPending ? "Inspecting…" : "Inspect"}
        </button>
      </div>
      <div className="mt-2">{look.error ? <p role="alert" className="text-sm text-bad">{look.error.message}</p> : look.data && <Found found={look.data} />}</div>
    </details>
  );
}

/** The state that the pool's leader sees, else what the catalog says. */
function BackendState({ row, live }: { row: Backend; live: BackendFigures | undefined }) {
  const state = backendState(row, live?.state);
  const unseen = live?.unseen_since;
  const why = live?.why ?? (row.silent_since ? "it does not answer" : "");
  return (
    <>
      <Badge tone={row.silent_since ? "bad" : unseen !== undefined && state === "ready" ? "warn" : backendTones[state]}>{state}</Badge>
      {why && (state !== "ready" || unseen !== undefined) && <span className="mt-0.5 block text-2xs text-soft">{why}</span>}
      {unseen !== undefined && !row.silent_since && <span className="block text-2xs text-warn">unseen {since({ since: unseen })}</span>}
      {row.silent_since && (
        <span className="block text-2xs text-bad">
          no answer <LastingFor since={row.silent_since} />
        </span>
      )}
      {row.leaving_since && (
        <span className="block text-2xs text-faint">
          draining for removal <LastingFor since={row.leaving_since} />
        </span>
      )}
    </>
  );
}

/** What the engine says of its limits, and what is in force; unknown is not shown as a number. */
function EngineLimits({ live }: { live: BackendFigures | undefined }) {
  if (live?.slots_in_force === undefined) return null;
  const said = (figure: number | undefined) => (figure === undefined ? "not reported" : compact(figure));
  const credit = live.prefill_credit === undefined ? "unknown" : live.prefill_credit === 0 ? "no limit" : `${compact(live.prefill_credit)} tokens`;
  return (
    <>
      <span
        className="block text-2xs text-faint"
        title={`Reported by the engine: slots ${said(live.engine_slots)}, KV cache ${said(live.engine_kv_tokens)} tokens (may be reserved: ${said(live.kv_offered)}), step ${said(live.engine_step_tokens)} tokens, context ${said(live.engine_max_model_len)} tokens. Prefill credit ${credit}${live.credit_why ? `: ${live.credit_why}` : ""}.`}
      >
        prefill credit {credit}
      </span>
      {live.limits_why && <span className="block whitespace-normal text-2xs text-warn">{live.limits_why}</span>}
      {live.step_time && (
        <span
          className="block text-2xs text-faint"
          title={`Fitted to ${count(live.step_time.steps)} of the engine's own steps. A step takes ${(live.step_time.t0 * 1000).toPrecision(3)} ms, and ${(live.step_time.a * 1e6).toPrecision(3)} µs for each prompt token. ${live.step_time.believed ? "The lab, the planner and the scheduler go by it." : "The error is too large for others to go by it."}`}
        >
          step times: error {text(percent(live.step_time.error))}
          {!live.step_time.believed && ", not used"}
        </span>
      )}
      {live.steps_why && <span className="block whitespace-normal text-2xs text-warn">step log not read: {live.steps_why}</span>}
      {live.speed_why && <span className="block whitespace-normal text-2xs text-warn">{live.speed_why}</span>}
      {live.step_why && <span className="block whitespace-normal text-2xs text-warn">{live.step_why}</span>}
      {!!live.foreign && live.foreign > 2 && <span className="block whitespace-normal text-2xs text-warn">{count(live.foreign)} requests in it were not sent by Quartermaster</span>}
    </>
  );
}

const ADAPTER_TONES: Record<AdapterState, Tone> = { loaded: "good", loading: "warn", missing: "plain", failed: "bad", unknown: "plain", unconfigured: "plain" };

/** Which LoRA adapters the engine lists; a pool without any has none. One that only the engine knows is shown too: it can be configured. */
function EngineAdapters({ live }: { live: BackendFigures | undefined }) {
  const adapters = Object.entries(live?.adapters ?? {});
  if (adapters.length === 0) return <span className="text-faint">{live === undefined ? "unknown" : "none"}</span>;
  return (
    <span className="mt-0.5 flex flex-wrap gap-1 whitespace-normal">
      {adapters.map(([name, state]) => (
        <Badge key={name} tone={ADAPTER_TONES[state]}>
          {name}: {state}
        </Badge>
      ))}
      {live?.adapters_why && <span className="block text-2xs text-warn">{live.adapters_why}</span>}
    </span>
  );
}

/** Whose promises a drained backend's room was needed for. */
function DrainEffects({ row }: { row: Backend }) {
  const path = `backends/${row.slug}`;
  const change = { draining: !row.draining };
  const trial = useQuery({ queryKey: ["trial", "PATCH", path, change], queryFn: ({ signal }) => attempt("PATCH", path, change, signal), retry: false, gcTime: 0 });
  return trial.error ? null : <EffectsPanel effects={trial.data} pending={trial.isFetching} />;
}

/** The vLLM servers. */
export function Backends() {
  const pools = useCatalog<Pool>("pools").data ?? [];
  const refresh = useRefresh();
  const [draining, setDraining] = useState<Backend | null>(null);
  const live = new Map(useSnapshots().flatMap((snapshot) => Object.entries(snapshot.backends ?? {})));
  const columns: Column<Backend>[] = [
    {
      label: "Backend",
      by: (row) => row.slug,
      className: "max-w-64",
      cell: (row) => (
        <>
          <Link className="link" to={`/backends/${row.slug}`}>
            {row.slug}
          </Link>
          <span className="block truncate font-mono text-2xs font-normal text-faint" title={row.url}>
            {row.url}
          </span>
          <Link className="link text-2xs font-normal" to={`/requests?backend=${row.slug}`}>
            requests
          </Link>
        </>
      ),
    },
    { label: "State", className: "max-w-72", by: (row) => live.get(row.slug)?.state, cell: (row) => <BackendState row={row} live={live.get(row.slug)} /> },
    { label: "Adapters", className: "max-w-64", cell: (row) => <EngineAdapters live={live.get(row.slug)} /> },
    { label: "Pool", by: (row) => row.pool, cell: (row) => row.pool },
    {
      label: "Running / slots",
      right: true,
      by: (row) => live.get(row.slug)?.running,
      cell: (row) => (
        <>
          {count(live.get(row.slug)?.running)} <span className="text-faint">/ {count(row.slots)}</span>
          <EngineLimits live={live.get(row.slug)} />
        </>
      ),
    },
    { label: "KV cache", unit: "tokens", right: true, by: (row) => row.kv_tokens, cell: (row) => <span title={`in use: ${text(percent(live.get(row.slug)?.kv_usage))}`}>{compact(row.kv_tokens)}</span> },
    { label: "Throughput", unit: "tok/s", right: true, by: (row) => row.tokens_per_s, cell: (row) => (row.tokens_per_s ? compact(row.tokens_per_s) : <span className="text-faint">not measured</span>) },
    { label: "GPU", right: true, by: (row) => live.get(row.slug)?.gpu_util, cell: (row) => text(percent(live.get(row.slug)?.gpu_util)) },
    { label: "Managed by", by: (row) => String(row.managed), cell: (row) => (row.managed ? "scaling driver" : "operators") },
  ];
  if (user.role === "member")
    return (
      <Empty title="This page is for operators">
        <p>Backends serve every tenant. What your requests wait for is in the queue.</p>
      </Empty>
    );
  return (
    <>
      <Resource<Backend>
        what="backend"
        title="Backends"
        intro="vLLM servers, each a replica of one pool. A draining backend finishes its running requests and receives no new ones."
        path="backends"
        columns={columns}
        specs={(query) => backendSpecs(options(pools.map((p) => p.slug)), { pool: query.get("pool") ?? (pools.length === 1 ? pools[0]!.slug : ""), url: query.get("url") ?? "" })}
        id={(row) => row.slug}
        empty={user.role === "admin" ? "No backend yet. Add the address of a vLLM server." : "No backend yet."}
        aboveForm={(row) => row === undefined && <Look />}
        actions={(row) => (
          <button type="button" className="button h-7" onClick={() => setDraining(row)} aria-label={`${row.draining ? "Return to service" : "Drain"} ${row.slug}`}>
            {row.draining ? "Return to service" : "Drain"}
          </button>
        )}
        effects
      />
      {draining && (
        <Confirm
          title={draining.draining ? `Return ${draining.slug} to service?` : `Drain ${draining.slug}?`}
          action={draining.draining ? "Return to service" : "Drain"}
          onClose={() => setDraining(null)}
          onRun={async () => {
            await send("POST", `backends/${draining.slug}/${draining.draining ? "undrain" : "drain"}`);
            notify(draining.draining ? `${draining.slug} receives work again once it answers a probe.` : `${draining.slug} drains.`);
            setDraining(null);
            void refresh();
          }}
        >
          {draining.draining ? (
            <p>It receives work again once it has answered a one-token probe.</p>
          ) : (
            <p>
              It receives no new work; requests running there finish ({live.get(draining.slug)?.running === undefined ? "how many is unknown" : `${count(live.get(draining.slug)?.running)} now`}). The pool has {draining.slots} slots fewer until it returns.
            </p>
          )}
          {mayWrite && <DrainEffects row={draining} />}
        </Confirm>
      )}
    </>
  );
}
