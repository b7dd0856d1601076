import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import type { Pool } from "../../api/catalog";
import { send } from "../../api/client";
import type { PolicyInfo, Trial, Version } from "../../api/operate";
import { Icon } from "../../components/icons";
import { Sheet } from "../../components/Sheet";
import { difference, textsOf, typed, type Texts } from "./params";
import { Diff, ParameterFields } from "./parts";

interface Props {
  pool: string;
  serving: Version;
  policies: readonly PolicyInfo[];
  onDone: (said: string) => void;
  onClose: () => void;
}

const of = (policies: readonly PolicyInfo[], kind: PolicyInfo["kind"]) => policies.filter((policy) => policy.kind === kind);

function Foot({ error, pending, blocked, action, onClose, onRun, note }: { error: Error | null; pending: boolean; blocked: boolean; action: string; onClose: () => void; onRun: () => void; note: string }) {
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
        <button type="button" className="button-primary" disabled={pending || blocked} onClick={onRun}>
          {pending ? "Saving…" : action}
        </button>
      </div>
    </div>
  );
}

/** Another order, modifiers or routing, in force at once. */
export function ChangePolicy({ pool, serving, policies, onDone, onClose }: Props) {
  const [policy, setPolicy] = useState(serving.policy);
  const [params, setParams] = useState<Texts>(textsOf(serving.policy_params));
  const [modifiers, setModifiers] = useState<Record<string, Texts>>(Object.fromEntries(Object.entries(serving.modifiers).map(([name, held]) => [name, textsOf(held)])));
  const [routing, setRouting] = useState(serving.routing);
  const [routed, setRouted] = useState<Texts>(textsOf(serving.routing_params));

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
  const changes = difference(serving, next as Version);
  const wrong = [ordering, route, ...around.map(([, found]) => found)].some(({ errors }) => Object.keys(errors).length > 0);
  const save = useMutation({
    mutationFn: () => send<Pool>("POST", `pools/${pool}/policy`, { policy, params: next.policy_params, modifiers: next.modifiers, routing, routing_params: next.routing_params }),
    onSuccess: (saved) => onDone(`${saved.policy}@${saved.policy_version} serves pool ${pool}.`),
  });
  const question = (kind: PolicyInfo["kind"], name: string) => policies.find((info) => info.kind === kind && info.name === name)?.question;

  return (
    <Sheet title={`Policy of pool ${pool}`} subtitle="It takes effect when saved; waiting requests are reordered." onClose={onClose} wide>
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
        <div className="rounded-md bg-raised px-3 py-2">
          <h3 className="label mb-1">What changes</h3>
          <Diff changes={changes} empty="No changes yet." />
        </div>
      </div>
      <Foot error={save.error} pending={save.isPending} blocked={wrong || changes.length === 0} action="Apply policy" note={`Version ${serving.number} can be restored with one click.`} onClose={onClose} onRun={() => save.mutate()} />
    </Sheet>
  );
}

/** Other parameters of the serving policy, watched for an interval and taken back where they hurt. */
export function NewTrial({ pool, serving, policies, onDone, onClose, minutes }: Props & { minutes: number }) {
  const [params, setParams] = useState<Texts>(textsOf(serving.policy_params));
  const [reason, setReason] = useState("");
  const known = policies.find((info) => info.kind === "ordering" && info.name === serving.policy)?.params ?? [];
  const { values, errors } = typed(known, params);
  const changes = difference(serving, { ...serving, policy_params: values });
  const run = useMutation({
    mutationFn: async () => {
      const trial = await send<Trial>("POST", `pools/${pool}/trials`, { params: values, reason });
      return send<Trial>("POST", `pools/${pool}/trials/${trial.id}/start`);
    },
    onSuccess: (started) => onDone(`Trial ${started.id} serves pool ${pool} as version ${started.version} for ${minutes} min.`),
  });
  return (
    <Sheet title={`Trial of ${serving.policy} in pool ${pool}`} subtitle={`Other parameters are active for ${minutes} min under guard rails. A breach rolls them back; otherwise they are kept.`} onClose={onClose} wide>
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
      </div>
      <Foot error={run.error} pending={run.isPending} blocked={changes.length === 0 || Object.keys(errors).length > 0} action="Start the trial" note="You can try it on a recording in the lab first." onClose={onClose} onRun={() => run.mutate()} />
    </Sheet>
  );
}
