import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get, send } from "../../api/client";
import type { Backend, Entitlement } from "../../api/catalog";
import type { LabRun, Listed, PolicyInfo, Recording, Tried } from "../../api/operate";
import { instant } from "../../components/form/form";
import { Icon } from "../../components/icons";
import { Segmented } from "../../components/Segmented";
import { useDraft } from "../../components/form/Discard";
import { Sheet } from "../../components/Sheet";
import { age, counted } from "../../lib/format";
import { zoneChoice } from "../../lib/zone";
import { Objects } from "../policies/Objects";
import { typed, type Texts } from "../policies/params";
import { ParameterFields } from "../policies/parts";
import { useCatalog } from "../tenants/data";
import { policyText } from "./lab";
import { between, LEAST_TIMES, MOST_TIMES, newcomerProblem, policyName, triedOf, windowProblem, yesterday, type Newcomer } from "./supposed";

interface Props {
  pools: readonly string[];
  onMade: (run: LabRun) => void;
  onClose: () => void;
}

const SOURCES = [
  { value: "window", label: "A pool's last minutes" },
  { value: "between", label: "A time of a pool" },
  { value: "kept", label: "A recording" },
  { value: "file", label: "A file" },
] as const;

function useRecordings() {
  return useQuery({ queryKey: ["lab", "recordings"], queryFn: ({ signal }) => get<Listed<Recording>>("lab/recordings", {}, signal) });
}

/** A policy to try beside what serves. */
function AddPolicy({ known, onAdd }: { known: readonly PolicyInfo[]; onAdd: (policy: string) => void }) {
  const orderings = known.filter((info) => info.kind === "ordering");
  const modifiers = known.filter((info) => info.kind === "modifier");
  const [name, setName] = useState("");
  const [around, setAround] = useState<string[]>([]);
  const [params, setParams] = useState<Texts>({});
  const info = orderings.find((one) => one.name === name);
  const { values, errors } = typed(info?.params ?? [], params);
  return (
    <div className="space-y-3 rounded-md border border-line p-3">
      <div className="flex flex-wrap items-end gap-3">
        <label className="flex min-w-40 flex-1 flex-col gap-1 text-sm font-medium">
          Policy
          <select
            aria-label="Policy"
            className="field"
            value={name}
            onChange={(event) => {
              setName(event.target.value);
              setParams({});
            }}
          >
            <option value="">choose</option>
            {orderings.map((one) => (
              <option key={one.name}>{one.name}</option>
            ))}
          </select>
        </label>
        <button
          type="button"
          className="button"
          disabled={!info || Object.keys(errors).length > 0}
          onClick={() => {
            onAdd([...around, policyText(name, values)].join("+"));
            setName("");
            setParams({});
            setAround([]);
          }}
        >
          <Icon name="plus" /> Add policy
        </button>
      </div>
      {info && (
        <>
          <p className="text-sm text-soft">{info.question}</p>
          <details>
            <summary className="text-sm text-soft hover:text-ink">Parameters and modifiers</summary>
            <div className="mt-3 space-y-3">
              <ParameterFields prefix="" known={info.params} texts={params} errors={errors} onChange={setParams} />
              <div className="flex flex-wrap gap-x-4 gap-y-1">
                {modifiers.map((modifier) => (
                  <label key={modifier.name} className="flex items-center gap-1.5 text-sm" title={modifier.question}>
                    <input type="checkbox" className="size-4 accent-(--accent)" checked={around.includes(modifier.name)} onChange={() => setAround((old) => (old.includes(modifier.name) ? old.filter((one) => one !== modifier.name) : [...old, modifier.name]))} />
                    {modifier.name}
                  </label>
                ))}
              </div>
            </div>
          </details>
        </>
      )}
    </div>
  );
}

const inputs = "field w-full";
const MOST_POLICIES = 8;
const MOST_NEWCOMERS = 5;

/** Tenants that were not there, each like somebody who was. */
function Newcomers({ known, newcomers, onChange }: { known: readonly Entitlement[]; newcomers: readonly Newcomer[]; onChange: (newcomers: Newcomer[]) => void }) {
  const [name, setName] = useState("");
  const [like, setLike] = useState("");
  const [times, setTimes] = useState("");
  const problem = newcomerProblem(name, like, times, [...newcomers.map((one) => one.name), ...known.map((one) => one.slug)]);
  return (
    <div className="space-y-2 sm:col-span-2">
      <p className="text-sm font-medium">New tenants</p>
      {newcomers.map((one) => (
        <p key={one.name} className="flex items-center gap-2 rounded-md bg-raised px-3 py-1.5 text-sm">
          <span className="min-w-0 flex-1 break-all">
            {one.name}: share and tier of {one.like}, {one.times} × its requests
          </span>
          <button type="button" className="button h-7 w-7 px-0" aria-label={`Leave out ${one.name}`} onClick={() => onChange(newcomers.filter((other) => other !== one))}>
            <Icon name="close" />
          </button>
        </p>
      ))}
      <div className="grid grid-cols-1 gap-2 sm:grid-cols-[1fr_1fr_6rem_auto]">
        <input aria-label="Name of a new tenant" className={inputs} value={name} maxLength={63} placeholder="name" onChange={(event) => setName(event.target.value)} />
        <select aria-label="Like which share" className={inputs} value={like} onChange={(event) => setLike(event.target.value)}>
          <option value="">like…</option>
          {known.map((one) => (
            <option key={one.slug}>{one.slug}</option>
          ))}
        </select>
        <input aria-label="Times its requests" className={inputs} inputMode="decimal" value={times} placeholder="× 1" onChange={(event) => setTimes(event.target.value)} />
        <button
          type="button"
          className="button h-9"
          disabled={problem !== "" || newcomers.length >= MOST_NEWCOMERS}
          onClick={() => {
            onChange([...newcomers, { name: name.trim(), like, times: between(times, LEAST_TIMES, MOST_TIMES) ?? 1 }]);
            setName("");
            setLike("");
            setTimes("");
          }}
        >
          Add
        </button>
      </div>
      {(name || like || times) && problem && <p className="text-2xs text-bad">{problem}</p>}
    </div>
  );
}

/** What if: a recording, some policies, and engines to replay them on. */
export function NewRun({ pools, onMade, onClose }: Props) {
  const guard = useDraft(onClose);
  const client = useQueryClient();
  const known = useQuery({ queryKey: ["policies"], queryFn: ({ signal }) => get<PolicyInfo[]>("policies", {}, signal), staleTime: Infinity });
  const recordings = useRecordings();
  const [source, setSource] = useState<(typeof SOURCES)[number]["value"]>("window");
  const [pool, setPool] = useState(pools[0] ?? "");
  const [minutes, setMinutes] = useState("60");
  const [recording, setRecording] = useState("");
  const [file, setFile] = useState<File | null>(null);
  const [name, setName] = useState("");
  const [policies, setPolicies] = useState<string[]>(["now"]);
  const [variants, setVariants] = useState("5");
  const [replicas, setReplicas] = useState("");
  const [slos, setSlos] = useState("");
  const [[from, to], setTimes] = useState(() => yesterday(new Date()));
  const [load, setLoad] = useState("");
  const [objects, setObjects] = useState<Tried[]>([]);
  const [lost, setLost] = useState<string[]>([]);
  const [newcomers, setNewcomers] = useState<Newcomer[]>([]);
  const [asItWas, setAsItWas] = useState(true);
  const backends = (useCatalog<Backend>("backends", { pool }, pool !== "").data ?? []).filter((row) => !row.draining);
  const shares = useCatalog<Entitlement>("entitlements", { pool }, pool !== "").data ?? [];
  const [times, many, number] = [between(load, LEAST_TIMES, MOST_TIMES), between(replicas, 1, 64, true), between(variants, 1, 30, true)];
  const changed = (typeof times === "number" && times !== 1) || typeof many === "number" || slos.trim() !== "" || objects.length + lost.length + newcomers.length > 0;
  const compared = changed && asItWas ? ["unchanged", ...policies] : policies;

  const choosePool = (next: string) => {
    setPool(next);
    setObjects([]); // of the other pool
    setLost([]);
    setNewcomers([]);
  };
  const stamp = () => `${new Date().toISOString().slice(0, 19).replace("T", " ")} UTC`;
  const chosen = recording || recordings.data?.results[0]?.name || "";
  const run = useMutation({
    mutationFn: async () => {
      let kept = chosen;
      if (source !== "kept") {
        const [since, until] = [instant(from), instant(to)];
        const label = source === "file" ? `${file!.name} ${stamp()}` : source === "window" ? `${pool.slice(0, 50)}, ${minutes} min to ${stamp()}` : `${pool.slice(0, 30)}, ${since!.slice(0, 16)} to ${until!.slice(0, 16)}, kept ${stamp()}`;
        const body = source === "window" ? { name: label, pool, minutes: Number(minutes) } : source === "between" ? { name: label, pool, since, until } : new FormData();
        if (body instanceof FormData) {
          body.set("name", label.slice(0, 100));
          body.set("file", file!);
        }
        kept = (await send<Recording>("POST", "lab/recordings", body)).name;
        await client.invalidateQueries({ queryKey: ["lab", "recordings"] });
        setSource("kept"); // a run that is refused does not record a second time
        setRecording(kept);
      }
      return send<LabRun>("POST", "lab/runs", {
        name: name.trim() || policies.map((policy) => policy.split(":")[0]).join(" or "),
        recording: kept,
        pool,
        policies: compared,
        variants: number ?? 5,
        replicas: many ?? 0,
        slos: slos.trim() ? (JSON.parse(slos) as unknown) : {},
        load: times ?? 1,
        objects: triedOf(objects),
        lost,
        newcomers,
      });
    },
    onSuccess: (made) => {
      guard.saved();
      onMade(made);
    },
  });
  const badSlos = (() => {
    try {
      if (slos.trim()) JSON.parse(slos);
      return false;
    } catch {
      return true;
    }
  })();
  const noWindow = source === "between" ? windowProblem(from, to) : "";
  const wrong = badSlos || times === undefined || many === undefined || number === undefined || compared.length > MOST_POLICIES || (many !== null && lost.length > 0) || (lost.length > 0 && lost.length === backends.length);
  const ready = policies.length > 0 && pool !== "" && !wrong && (source === "window" ? typeof between(minutes, 0.1, 44_640) === "number" : source === "between" ? noWindow === "" : source === "kept" ? chosen !== "" : file !== null);

  return (
    <Sheet title="What if?" subtitle="Runs policies on the same recorded traffic, on simulated engines as fast as yours. Live traffic is not affected." onClose={guard.close} onTyped={guard.touch} wide>
      <div className="min-h-0 flex-1 space-y-5 overflow-y-auto px-5 py-4">
        <fieldset className="space-y-3">
          <legend className="mb-1 text-sm font-semibold">Traffic</legend>
          <Segmented label="Traffic from" value={source} options={SOURCES} onChange={setSource} />
          <div className="grid grid-cols-1 gap-3 sm:grid-cols-2">
            <label className="flex flex-col gap-1 text-sm font-medium">
              Pool
              <select className={inputs} value={pool} onChange={(event) => choosePool(event.target.value)}>
                {pools.map((one) => (
                  <option key={one}>{one}</option>
                ))}
              </select>
              <span className="text-2xs font-normal text-faint">The run uses its engines, limits and policy.</span>
            </label>
            {source === "window" && (
              <label className="flex flex-col gap-1 text-sm font-medium">
                <span>
                  Last <span className="text-2xs font-normal text-faint">minutes</span>
                </span>
                <input className={inputs} inputMode="decimal" value={minutes} onChange={(event) => setMinutes(event.target.value)} />
                <span className="text-2xs font-normal text-faint">Kept as a recording: lengths, times and names, no text.</span>
              </label>
            )}
            {source === "between" && (
              <div className="grid grid-cols-1 gap-2 sm:grid-cols-2">
                <label className="flex flex-col gap-1 text-sm font-medium">
                  From
                  <input type="datetime-local" className={inputs} value={from} onChange={(event) => setTimes([event.target.value, to])} />
                </label>
                <label className="flex flex-col gap-1 text-sm font-medium">
                  To
                  <input type="datetime-local" className={inputs} value={to} onChange={(event) => setTimes([from, event.target.value])} />
                </label>
                <span className={`text-2xs sm:col-span-2 ${from && to && noWindow ? "text-bad" : "text-faint"}`}>{(from && to && noWindow) || `In ${zoneChoice === "utc" ? "UTC" : "this browser's time"}, as far back as the ledger is kept.`}</span>
              </div>
            )}
            {source === "kept" && (
              <label className="flex flex-col gap-1 text-sm font-medium">
                Recording
                <select className={inputs} value={chosen} onChange={(event) => setRecording(event.target.value)}>
                  {(recordings.data?.results ?? []).map((one) => (
                    <option key={one.name} value={one.name}>
                      {one.name} ({counted(one.requests, "request")}, {age(one.span_s)})
                    </option>
                  ))}
                  {recordings.data?.results.length === 0 && <option value="">no recordings yet</option>}
                </select>
              </label>
            )}
            {source === "file" && (
              <label className="flex flex-col gap-1 text-sm font-medium">
                Recording or trace
                <input type="file" className="text-sm" onChange={(event) => setFile(event.target.files?.[0] ?? null)} />
                <span className="text-2xs font-normal text-faint">Any format that `lab compare` reads, up to 32 MiB.</span>
              </label>
            )}
          </div>
        </fieldset>
        <fieldset className="space-y-3">
          <legend className="mb-1 text-sm font-semibold">Policies</legend>
          <ol className="space-y-1.5">
            {compared.map((policy, i) => (
              <li key={policy} className="flex items-center gap-2 rounded-md bg-raised px-3 py-1.5 text-sm">
                <span className="min-w-0 flex-1 break-all">{policy === "now" ? `the active policy of ${pool}` : policy === "unchanged" ? `${policyName(policy)}: the active policy without the suppositions` : policy}</span>
                {i === 0 && <span className="text-2xs text-faint">baseline of the comparison</span>}
                <button type="button" className="button h-7 w-7 px-0" aria-label={`Remove ${policy}`} disabled={policy !== "unchanged" && policies.length === 1} onClick={() => (policy === "unchanged" ? setAsItWas(false) : setPolicies((old) => old.filter((one) => one !== policy)))}>
                  <Icon name="close" />
                </button>
              </li>
            ))}
          </ol>
          {known.data && compared.length < MOST_POLICIES && <AddPolicy known={known.data} onAdd={(policy) => setPolicies((old) => (old.includes(policy) ? old : [...old, policy]))} />}
        </fieldset>
        <fieldset className="grid grid-cols-1 gap-3 sm:grid-cols-2">
          <legend className="mb-1 text-sm font-semibold">What if</legend>
          <label className="flex flex-col gap-1 text-sm font-medium">
            Load
            <input className={inputs} inputMode="decimal" value={load} placeholder="× 1, as recorded" aria-invalid={times === undefined || undefined} onChange={(event) => setLoad(event.target.value)} />
            <span className={`text-2xs font-normal ${times === undefined ? "text-bad" : "text-faint"}`}>{times === undefined ? `${LEAST_TIMES} to ${MOST_TIMES} times the recorded one.` : "Times the recorded load: the same requests arrive this many times as fast."}</span>
          </label>
          <label className="flex flex-col gap-1 text-sm font-medium">
            Replicas
            <input className={inputs} inputMode="numeric" value={replicas} placeholder="as many as there are" aria-invalid={many === undefined || undefined} onChange={(event) => setReplicas(event.target.value)} />
            {many === undefined && <span className="text-2xs font-normal text-bad">A whole number, 1 to 64.</span>}
          </label>
          {backends.length > 1 && (
            <div className="space-y-1 sm:col-span-2" role="group" aria-label="Lost replicas">
              <p className="text-sm font-medium">
                Lost replicas <span className="text-2xs font-normal text-faint">shares that cannot be kept without them are degraded</span>
              </p>
              <div className="flex flex-wrap gap-x-4 gap-y-1">
                {backends.map(({ slug }) => (
                  <label key={slug} className="flex items-center gap-1.5 text-sm">
                    <input type="checkbox" className="size-4 accent-(--accent)" checked={lost.includes(slug)} onChange={(event) => setLost((old) => (event.target.checked ? [...old, slug] : old.filter((one) => one !== slug)))} />
                    {slug}
                  </label>
                ))}
              </div>
              {lost.length > 0 && lost.length === backends.length && <p className="text-2xs text-bad">At least one replica must remain.</p>}
              {lost.length > 0 && many !== null && <p className="text-2xs text-bad">Give a number of replicas or name lost ones, not both.</p>}
            </div>
          )}
          <div className="sm:col-span-2">
            <Objects key={pool} pool={pool} objects={objects} onChange={setObjects} />
          </div>
          <Newcomers key={`newcomers of ${pool}`} known={shares} newcomers={newcomers} onChange={setNewcomers} />
          <label className="flex flex-col gap-1 text-sm font-medium sm:col-span-2">
            <span>
              SLOs to use instead of the recording's <span className="text-2xs font-normal text-faint">by tier; optional</span>
            </span>
            <textarea className={`${inputs} font-mono text-xs`} rows={2} spellCheck={false} value={slos} placeholder='{"premium": {"ttft_s": 0.5, "tbt_s": 0.05}}' aria-invalid={badSlos || undefined} onChange={(event) => setSlos(event.target.value)} />
            {badSlos && <span className="text-2xs text-bad">This is not JSON.</span>}
          </label>
          {changed && (
            <label className="flex items-center gap-2 text-sm sm:col-span-2">
              <input type="checkbox" className="size-4 accent-(--accent)" checked={asItWas} onChange={(event) => setAsItWas(event.target.checked)} />
              Compare with the active policy as it was
            </label>
          )}
        </fieldset>
        <fieldset className="grid grid-cols-1 gap-3 sm:grid-cols-2">
          <legend className="mb-1 text-sm font-semibold">How</legend>
          <label className="flex flex-col gap-1 text-sm font-medium">
            Variants
            <input className={inputs} inputMode="numeric" value={variants} placeholder="5" aria-invalid={number === undefined || undefined} onChange={(event) => setVariants(event.target.value)} />
            <span className={`text-2xs font-normal ${number === undefined ? "text-bad" : "text-faint"}`}>Variants of the recording, the same for every policy. More of them make intervals narrower. 1 to 30.</span>
          </label>
          <label className="flex flex-col gap-1 text-sm font-medium sm:col-span-2">
            Name
            <input className={inputs} value={name} maxLength={100} placeholder="generated from the policies if empty" onChange={(event) => setName(event.target.value)} />
          </label>
        </fieldset>
      </div>
      <div className="border-t border-line px-5 py-3">
        {run.error && (
          <p role="alert" className="mb-3 rounded-md bg-bad-bg px-3 py-2 text-sm text-bad">
            {run.error.message}
          </p>
        )}
        <div className="flex justify-end gap-2">
          <button type="button" className="button h-9" onClick={guard.close}>
            Cancel
          </button>
          <button type="button" className="button-primary" disabled={!ready || run.isPending} onClick={() => run.mutate()}>
            {run.isPending ? "Starting…" : "Start run"}
          </button>
        </div>
      </div>
      {guard.question}
    </Sheet>
  );
}
