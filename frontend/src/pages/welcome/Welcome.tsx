import { useMutation, useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { Link, useNavigate } from "react-router";
import { list, type EngineFound, type IssuedKey, type Made, type Pool } from "../../api/catalog";
import { ApiError, get } from "../../api/client";
import { Code, CopyButton } from "../../components/Copy";
import { fieldsOf } from "../../components/form/fields";
import type { FieldSpec } from "../../components/form/form";
import { ResourceForm } from "../../components/form/ResourceForm";
import { Icon } from "../../components/icons";
import { Empty } from "../../components/Shell";
import { useOutages } from "../../feed/live";
import { hold } from "../../lib/keyring";
import { user } from "../../lib/page";
import { EngineKinds, Found, lookAt } from "../tenants/Backends";
import { useCatalog, useRefresh, useSnapshots } from "../tenants/data";
import { curl, Failed, Waiting } from "../tenants/parts";
import { inPart, options } from "../tenants/specs";
import { NewTenant } from "../tenants/TenantList";
import { heading, nextStep, poolName, steps, type Inventory, type StepName } from "./steps";

const REFRESH_MS = 3000;

async function inventory(signal: AbortSignal): Promise<Inventory> {
  const count = async (path: string, query: Record<string, string> = {}): Promise<number> => (await list(path, { limit: "1", ...query }, signal)).count;
  const [backends, pools, tenants, entitlements, keys, requests] = await Promise.all([
    count("backends"),
    count("pools"),
    count("tenants"),
    count("entitlements"),
    count("keys", { revoked: "false" }),
    get<{ results: unknown[] }>("requests", { limit: "1" }, signal).then((page) => page.results.length),
  ]);
  return { backends, pools, tenants, entitlements, keys, requests };
}

const pool = fieldsOf("pools");
const backend = fieldsOf("backends");

function engineSpecs(found: EngineFound): FieldSpec[] {
  const model = found.models[0];
  const length = model?.max_model_len ?? 8192;
  const name = poolName(model?.id ?? "");
  const bound = (most: number): string => String(Math.min(most, Math.max(1, length >> 1)));
  const several = found.models.length > 1;
  return [
    inPart("pool", pool("model", "Model", { initial: model?.id ?? "", ...(several ? { kind: "choice", options: options(found.models.map(({ id }) => id)) } : {}) })),
    inPart("pool", pool("slug", "Pool", { initial: name })),
    inPart("backend", backend("slots", "Slots", { unit: "sequences", placeholder: "from the engine" })),
    inPart("backend", backend("kv_tokens", "KV cache", { initial: found.kv_tokens ? String(found.kv_tokens) : "", placeholder: "200000" })),
    inPart("pool", pool("max_model_len", "Context length", { initial: String(length), group: "More" })),
    inPart("pool", pool("default_output_tokens", "Default output bound", { initial: bound(512), group: "More" })),
    inPart("pool", pool("max_output_tokens", "Largest output bound", { initial: bound(4096), group: "More" })),
    inPart("backend", backend("slug", "Backend", { initial: `${name || "engine"}-0`, group: "More" })),
  ];
}

/** Engines of other makes than vLLM take no cache_salt, and the API refuses to promise more. */
const ofKind = (engine: string) => (engine.startsWith("vllm") ? { engine } : { engine, prefix_cache: "unsalted" });

/** From an address to a pool that serves. */
function FirstEngine({ onMade }: { onMade: () => void }) {
  const [url, setUrl] = useState("");
  const [secret, setSecret] = useState("");
  const [locked, setLocked] = useState(false);
  const [kind, setKind] = useState("vllm");
  const look = useMutation({ mutationFn: () => lookAt(url, secret, kind), onSuccess: (found) => !found.reachable && /401|403/.test(found.why) && setLocked(true) });
  const wrong = look.error instanceof ApiError ? (look.error.fields.url?.join(" ") ?? look.error.message) : look.error?.message;
  const found = look.data;
  return (
    <div className="space-y-4">
      <form
        className="px-5 pt-1"
        onSubmit={(event) => {
          event.preventDefault();
          if (url.trim()) look.mutate();
        }}
      >
        <label htmlFor="engine-url" className="mb-1 block text-sm font-medium">
          Address of your engine
        </label>
        <div className="flex flex-wrap gap-2">
          <input
            id="engine-url"
            className="field h-9 min-w-0 flex-1 basis-64"
            placeholder="http://10.0.0.7:8000"
            value={url}
            spellCheck={false}
            autoComplete="off"
            aria-invalid={wrong ? true : undefined}
            aria-describedby="engine-url-note"
            onChange={(event) => {
              setUrl(event.target.value);
              if (!look.isIdle) look.reset();
            }}
          />
          <EngineKinds
            value={kind}
            onChange={(chosen) => {
              setKind(chosen);
              if (!look.isIdle) look.reset();
            }}
          />
          {locked && <input aria-label="The engine's API key" type="password" autoComplete="off" className="field h-9 w-44" placeholder="its API key" value={secret} onChange={(event) => setSecret(event.target.value)} />}
          <button type="submit" className={found?.reachable ? "button h-9" : "button-primary"} disabled={!url.trim() || look.isPending}>
            {look.isPending ? "Inspecting…" : "Inspect"}
          </button>
        </div>
        <p id="engine-url-note" className={`mt-1 text-2xs ${wrong ? "font-medium text-bad" : "text-faint"}`}>
          {wrong ?? "Scheme, host and port, as reachable from this server. Inspecting saves nothing."}{" "}
          {!locked && (
            <button type="button" className="link" onClick={() => setLocked(true)}>
              It requires an API key
            </button>
          )}
        </p>
        {found && (
          <div className="mt-3">
            <Found found={found} />
          </div>
        )}
      </form>
      {found?.reachable && found.models.length > 0 && !found.used_by && (
        <ResourceForm<Made>
          key={`${kind} ${url}`}
          specs={engineSpecs(found)}
          method="POST"
          path="setup"
          submit="Create pool and backend"
          extra={(typed) => ({ ...typed, pool: { ...(typed.pool as object), ...ofKind(kind) }, backend: { ...(typed.backend as object), url: url.trim(), ...(secret ? { api_key: secret } : {}) } })}
          onSaved={onMade}
        />
      )}
    </div>
  );
}

function FirstRequest({ made, model }: { made: IssuedKey | null; model: string }) {
  return (
    <div className="space-y-4 px-5 pb-5">
      {made && (
        <div>
          <p className="mb-1 text-sm text-soft">Your first key. Its secret is shown only now; keep it:</p>
          <div className="flex flex-wrap items-center gap-2 rounded-md border border-edge bg-page p-2.5">
            <code className="min-w-0 flex-1 basis-64 font-mono text-xs break-all select-all" data-testid="secret">
              {made.key}
            </code>
            <CopyButton text={made.key} label="Copy key" />
          </div>
        </div>
      )}
      <Code text={curl(made?.key ?? "$KEY", model)} label="First request with curl" />
      <div className="flex flex-wrap items-center gap-3">
        <Link to="/playground" className="button-primary">
          Send it from the playground
        </Link>
        <p className="text-sm text-faint">This page updates when the first request arrives.</p>
      </div>
    </div>
  );
}

/** From nothing to the first request, by the hand. */
export function Welcome() {
  if (user.role === "member")
    return (
      <Empty title="This page is for admins">
        <p>Here an installation gets its first pool and tenant. To send requests you need a key of your tenant.</p>
      </Empty>
    );
  return <Steps />;
}

function Steps() {
  const refresh = useRefresh();
  const navigate = useNavigate();
  const have = useQuery({ queryKey: ["catalog", "inventory"], queryFn: ({ signal }) => inventory(signal), refetchInterval: REFRESH_MS });
  const outages = useOutages();
  const serves = useSnapshots().some((snapshot) => Object.values(snapshot.backends ?? {}).some(({ state }) => state === "ready"));
  const model = useCatalog<Pool>("pools").data?.[0]?.model ?? "MODEL";
  const [made, setMade] = useState<IssuedKey | null>(null);
  if (have.error) return <Failed error={have.error} retry={() => void have.refetch()} />;
  if (!have.data) return <Waiting />;
  const all = steps(have.data);
  const next = nextStep(all);
  const unseen = outages.length > 0;
  const { title, text } = heading(next !== undefined, unseen, serves);
  const bodies: Record<StepName, ReactNode> = {
    engine: (
      <FirstEngine
        onMade={() => {
          void refresh();
          void navigate("/welcome"); // the overview that may show this page has a pool to show now
        }}
      />
    ),
    tenant: (
      <NewTenant
        onMade={({ key, tenant }) => {
          hold(key!.key, `${key!.name}, ${tenant!.slug}`);
          setMade(key!);
          void refresh();
        }}
      />
    ),
    request: <FirstRequest made={made} model={model} />,
  };
  return (
    <div className="mx-auto max-w-3xl">
      <title>Welcome · Quartermaster</title>
      <h1 className="text-lg font-semibold tracking-tight">{title}</h1>
      <p className="mb-4 text-sm text-soft">{text}</p>
      <ol className="space-y-3">
        {all.map((step, i) => {
          const current = step === next;
          return (
            <li key={step.name} className="panel" data-step={step.name} data-done={step.done} aria-current={current ? "step" : undefined}>
              <div className="flex items-start gap-3 px-5 py-3.5">
                <span className={`mt-px inline-flex size-6 shrink-0 items-center justify-center rounded-full text-xs font-semibold ${step.done && !unseen ? "bg-good-bg text-good" : current ? "bg-accent text-on-accent" : "bg-raised text-faint"}`} aria-hidden="true">
                  {step.done && !unseen ? <Icon name="check" /> : i + 1}
                </span>
                <div className="min-w-0">
                  <h2 className={`text-sm font-semibold ${current || step.done ? "" : "text-soft"}`}>
                    {step.title}
                    <span className="sr-only">{step.done ? (unseen ? ", configured" : ", done") : current ? ", next" : ", later"}</span>
                  </h2>
                  <p className="text-sm text-soft">{step.text}</p>
                </div>
              </div>
              {current && bodies[step.name]}
            </li>
          );
        })}
      </ol>
      {!next && (
        <p className="mt-4 flex gap-2">
          <Link to="/" className="button-primary">
            Open the overview
          </Link>
          <Link to="/tenants" className="button h-9">
            More tenants
          </Link>
        </p>
      )}
    </div>
  );
}
