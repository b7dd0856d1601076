import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import type { Pool } from "../../api/catalog";
import { ApiError, get, send } from "../../api/client";
import type { PolicyInfo, Trial, Tried, Version } from "../../api/operate";
import { Icon } from "../../components/icons";
import { useDraft } from "../../components/form/Discard";
import { Sheet } from "../../components/Sheet";
import { zone } from "../../lib/format";
import { roomTyped, startOf, windowOf, type Draft } from "./drafts";
import { Objects } from "./Objects";
import { difference, textsOf, triedChanges, typed, type Texts } from "./params";
import { Diff, ParameterFields, Plan } from "./parts";

interface Props {
  pool: string;
  serving: Version;
  policies: readonly PolicyInfo[];
  onDone: (said: string) => void;
  onClose: () => void;
}

const of = (policies: readonly PolicyInfo[], kind: PolicyInfo["kind"]) => policies.filter((policy) => policy.kind === kind);

function Foot({ error, pending, blocked, action, onClose, onRun, note, children }: { error: Error | null; pending: boolean; blocked: boolean; action: string; onClose: () => void; onRun: () => void; note: string; children?: ReactNode }) {
  return (
    <div className="border-t border-line px-5 py-3">
      {error && (
        <p role="alert" className="mb-3 flex gap-2 rounded-md bg-bad-bg px-3 py-2 text-sm text-bad">
          <span className="mt-0.5 shrink-0">
            <Icon name="alert" />
          </span>
          {error.message}
        </p>
      )}
      <div className="flex flex-wrap items-center justify-end gap-2">
        <p className="mr-auto text-2xs text-faint">{note}</p>
        <button type="button" className="button h-9" onClick={onClose}>
          Cancel
        </button>
        {children}
        <button type="button" className="button-primary" disabled={pending || blocked} onClick={onRun}>
          {pending ? "Saving…" : action}
        </button>
      </div>
    </div>
  );
}

const WINDOWS = [
  { value: "", label: "the latest traffic" },
  { value: "1", label: "the last hour" },
  { value: "6", label: "the last 6 h" },
  { value: "24", label: "the last 24 h" },
  { value: "chosen", label: "from … to" },
] as const;

/** A draft of any change: replayed first and tried for a while, or in force at once. */
export function ChangePolicy({ pool, serving, policies, draft, onDone, onTrial, onClose }: Props & { draft?: Draft; onTrial: (trial: Trial) => void }) {
  const guard = useDraft(onClose);
  const [policy, setPolicy] = useState(draft?.policy ?? serving.policy);
  const [params, setParams] = useState<Texts>(draft?.params ?? textsOf(serving.policy_params));
  const [modifiers, setModifiers] = useState<Record<string, Texts>>(Object.fromEntries(draft ? draft.modifiers.map((name) => [name, {}]) : Object.entries(serving.modifiers).map(([name, held]) => [name, textsOf(held)])));
  const [routing, setRouting] = useState(serving.routing);
  const [routed, setRouted] = useState<Texts>(textsOf(serving.routing_params));
  const [credit, setCredit] = useState(serving.room?.prefill_credit?.toString() ?? "");
  const [headroom, setHeadroom] = useState(serving.room?.headroom_slots?.toString() ?? "");
  const [objects, setObjects] = useState<Tried[]>([]);
  const [choice, setChoice] = useState<string>("");
  const [from, setFrom] = useState("");
  const [to, setTo] = useState("");
  const [reason, setReason] = useState("");
  const [seen, setSeen] = useState(serving.number); // the version that this draft is meant to replace
  const client = useQueryClient();

  const known = (kind: PolicyInfo["kind"], name: string) => policies.find((info) => info.kind === kind && info.name === name)?.params ?? [];
  const ordering = typed(known("ordering", policy), params);
  const around = Object.entries(modifiers).map(([name, texts]) => [name, typed(known("modifier", name), texts)] as const);
  const route = typed(known("routing", routing), routed);
  const next = {
    policy,
    policy_params: ordering.values,
    modifiers: Object.fromEntries(around.map(([name, { values }]) => [name, values])),
    routing,
    routing_params: route.values,
  };
  const room = { prefill_credit: roomTyped(credit), headroom_slots: roomTyped(headroom) };
  const roomChanges = serving.room ? difference(serving, { ...serving, room: { prefill_credit: room.prefill_credit ?? null, headroom_slots: room.headroom_slots ?? null } }) : [];
  const ofPolicy = difference({ ...serving, room: null }, { ...next, room: null });
  const changes = [...ofPolicy, ...roomChanges, ...triedChanges(objects)];
  const over = windowOf(choice, from, to, Date.now());
  const noWindow = choice === "chosen" && over === undefined;
  const wrong = room.prefill_credit === undefined || room.headroom_slots === undefined || [ordering, route, ...around.map(([, found]) => found)].some(({ errors }) => Object.keys(errors).length > 0);
  const save = useMutation({
    mutationFn: async () => {
      try {
        return await send<Pool>("POST", `pools/${pool}/policy`, { policy, params: next.policy_params, modifiers: next.modifiers, routing, routing_params: next.routing_params, replaces: seen });
      } catch (error) {
        if (!(error instanceof ApiError && error.status === 409)) throw error;
        const now = await get<Pool>(`pools/${pool}`);
        if (now.policy_version === seen) throw error;
        setSeen(now.policy_version);
        void client.invalidateQueries(); // what changes is shown against what serves now
        throw new Error(`Another user, or tuning, changed the policy meanwhile: ${now.policy}@${now.policy_version} serves, and this draft began with version ${seen}. Apply again to replace all of it.`);
      }
    },
    onSuccess: (saved) => {
      guard.saved();
      onDone(`${saved.policy}@${saved.policy_version} serves pool ${pool}.`);
    },
  });
  const propose = useMutation({
    mutationFn: () => send<Trial>("POST", `pools/${pool}/trials`, { setting: { ...next, ...(roomChanges.length ? { room } : {}), ...(objects.length ? { objects: objects.map(({ kind, name, values }) => ({ kind, name, values })) } : {}) }, ...(over ? { window: over } : {}), reason }),
    onSuccess: (trial) => {
      guard.saved();
      onTrial(trial);
    },
  });
  const question = (kind: PolicyInfo["kind"], name: string) => policies.find((info) => info.kind === kind && info.name === name)?.question;

  return (
    <Sheet title={`Policy of pool ${pool}`} subtitle="Replay a draft on recorded traffic and try it for a while, or apply it at once; waiting requests are reordered." onClose={guard.close} onTyped={guard.touch} wide>
      <div className="min-h-0 flex-1 space-y-6 overflow-y-auto px-5 py-4">
        <fieldset className="space-y-3">
          <legend className="text-sm font-semibold">Order: which request runs next</legend>
          <select
            aria-label="Order"
            className="field"
            data-autofocus
            value={policy}
            onChange={(event) => {
              setPolicy(event.target.value);
              setParams(event.target.value === serving.policy ? textsOf(serving.policy_params) : {});
            }}
          >
            {of(policies, "ordering").map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
          </select>
          <p className="text-sm text-soft">{question("ordering", policy)}</p>
          <ParameterFields key={policy} prefix="" known={known("ordering", policy)} texts={params} errors={ordering.errors} onChange={setParams} />
        </fieldset>
        <fieldset className="space-y-2">
          <legend className="text-sm font-semibold">Modifiers: layers around the order</legend>
          {of(policies, "modifier").map(({ name, question: asked, params: fields }) => {
            const on = name in modifiers;
            return (
              <div key={name}>
                <label className="flex items-start gap-2 text-sm">
                  <input
                    type="checkbox"
                    className="mt-0.5 size-4 accent-(--accent)"
                    checked={on}
                    onChange={() => setModifiers((old) => (on ? Object.fromEntries(Object.entries(old).filter(([held]) => held !== name)) : { ...old, [name]: {} }))}
                  />
                  <span>
                    <span className="font-medium">{name}</span> <span className="text-soft">{asked}</span>
                  </span>
                </label>
                {on && fields.length > 0 && (
                  <div className="my-2 ml-6">
                    <ParameterFields prefix={`${name}.`} known={fields} texts={modifiers[name] ?? {}} errors={around.find(([held]) => held === name)?.[1].errors ?? {}} onChange={(texts) => setModifiers((old) => ({ ...old, [name]: texts }))} />
                  </div>
                )}
              </div>
            );
          })}
        </fieldset>
        <fieldset className="space-y-3">
          <legend className="text-sm font-semibold">Routing: to which backend</legend>
          <select
            aria-label="Routing"
            className="field"
            value={routing}
            onChange={(event) => {
              setRouting(event.target.value);
              setRouted(event.target.value === serving.routing ? textsOf(serving.routing_params) : {});
            }}
          >
            {of(policies, "routing").map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
          </select>
          <p className="text-sm text-soft">{question("routing", routing)}</p>
          <ParameterFields key={routing} prefix="routing." known={known("routing", routing)} texts={routed} errors={route.errors} onChange={setRouted} />
        </fieldset>
        {serving.room && (
          <fieldset className="grid grid-cols-1 gap-x-4 gap-y-3 sm:grid-cols-2">
            <legend className="mb-2 text-sm font-semibold">Room</legend>
            <label className="text-sm">
              <span className="mb-1 block font-medium">Prefill credit [tokens]</span>
              <input className="field w-full font-mono text-xs" value={credit} placeholder="automatic" inputMode="numeric" aria-invalid={room.prefill_credit === undefined || undefined} onChange={(event) => setCredit(event.target.value)} />
            </label>
            <label className="text-sm">
              <span className="mb-1 block font-medium">Headroom [slots]</span>
              <input className="field w-full font-mono text-xs" value={headroom} placeholder="automatic" inputMode="numeric" aria-invalid={room.headroom_slots === undefined || undefined} onChange={(event) => setHeadroom(event.target.value)} />
            </label>
          </fieldset>
        )}
        <Objects pool={pool} objects={objects} onChange={setObjects} />
        <div className="rounded-md bg-raised px-3 py-2">
          <h3 className="label mb-1">What changes</h3>
          <Diff changes={changes} empty="No changes yet." />
        </div>
        <fieldset className="space-y-2">
          <legend className="text-sm font-semibold">Replay</legend>
          <div className="flex flex-wrap items-end gap-3 text-sm">
            <label>
              <span className="mb-1 block font-medium">On</span>
              <select className="field" value={choice} onChange={(event) => setChoice(event.target.value)}>
                {WINDOWS.map(({ value, label }) => (
                  <option key={value} value={value}>
                    {label}
                  </option>
                ))}
              </select>
            </label>
            {choice === "chosen" && (
              <>
                <label>
                  <span className="mb-1 block font-medium">From ({zone()})</span>
                  <input type="datetime-local" className="field" value={from} onChange={(event) => setFrom(event.target.value)} />
                </label>
                <label>
                  <span className="mb-1 block font-medium">To</span>
                  <input type="datetime-local" className="field" value={to} onChange={(event) => setTo(event.target.value)} />
                </label>
              </>
            )}
          </div>
          <label className="block text-sm">
            <span className="mb-1 block font-medium">Reason</span>
            <input className="field w-full" value={reason} maxLength={250} placeholder="optional; for the history" onChange={(event) => setReason(event.target.value)} />
          </label>
        </fieldset>
      </div>
      <Foot error={propose.error ?? save.error} pending={propose.isPending || save.isPending} blocked={wrong || noWindow || changes.length === 0} action="Replay the draft" note={`Version ${serving.number} can be restored with one click.`} onClose={guard.close} onRun={() => propose.mutate()}>
        <button
          type="button"
          className="button h-9"
          disabled={save.isPending || wrong || ofPolicy.length === 0 || ofPolicy.length < changes.length}
          title={ofPolicy.length < changes.length ? "Credit, headroom, shares, tiers and slots go through a replay, or are changed on their own pages." : undefined}
          onClick={() => save.mutate()}
        >
          Apply policy
        </button>
      </Foot>
      {guard.question}
    </Sheet>
  );
}

/** Other parameters of the serving policy, watched for an interval and taken back where they hurt. */
export function NewTrial({ pool, serving, policies, onDone, onClose, interval, settings }: Props & { interval: number; settings: Record<string, number> | undefined }) {
  const guard = useDraft(onClose);
  const [minutes, setMinutes] = useState("");
  const [params, setParams] = useState<Texts>(textsOf(serving.policy_params));
  const [reason, setReason] = useState("");
  const known = policies.find((info) => info.kind === "ordering" && info.name === serving.policy)?.params ?? [];
  const { values, errors } = typed(known, params);
  const changes = difference(serving, { ...serving, policy_params: values });
  const run = useMutation({
    mutationFn: async () => {
      const trial = await send<Trial>("POST", `pools/${pool}/trials`, { params: values, reason });
      return send<Trial>("POST", `pools/${pool}/trials/${trial.id}/start`, startOf(minutes));
    },
    onSuccess: (started) => {
      guard.saved();
      onDone(`Trial ${started.id} serves pool ${pool} as version ${started.version} for ${startOf(minutes)?.minutes ?? interval} min.`);
    },
  });
  return (
    <Sheet title={`Trial of ${serving.policy} in pool ${pool}`} subtitle="Other parameters are active for a while under guard rails. A breach rolls them back; otherwise they are kept." onClose={guard.close} onTyped={guard.touch} wide>
      <div className="min-h-0 flex-1 space-y-5 overflow-y-auto px-5 py-4">
        <ParameterFields prefix="" known={known} texts={params} errors={errors} onChange={setParams} />
        <label className="block text-sm">
          <span className="mb-1 block font-medium">Reason</span>
          <input className="field w-full" value={reason} maxLength={250} placeholder="Why this may be better" onChange={(event) => setReason(event.target.value)} />
        </label>
        <div className="rounded-md bg-raised px-3 py-2">
          <h3 className="label mb-1">Parameters to try</h3>
          <Diff changes={changes} empty="No changes yet: change a parameter." />
        </div>
        <Plan minutes={minutes} interval={interval} settings={settings} onMinutes={setMinutes} />
      </div>
      <Foot error={run.error} pending={run.isPending} blocked={changes.length === 0 || Object.keys(errors).length > 0} action="Start the trial" note="You can try it on a recording in the lab first." onClose={guard.close} onRun={() => run.mutate()} />
      {guard.question}
    </Sheet>
  );
}
