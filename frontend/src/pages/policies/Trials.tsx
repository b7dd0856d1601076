import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { get, send } from "../../api/client";
import type { Listed, Study, Trial, Tuning } from "../../api/operate";
import { category } from "../../charts/palette";
import { Badge, type Tone } from "../../components/Badge";
import { notify } from "../../components/Notices";
import { Segmented } from "../../components/Segmented";
import { Sheet } from "../../components/Sheet";
import { Table, type Column } from "../../components/Table";
import { age, counted, moment, NONE, percent, text, words } from "../../lib/format";
import { useDark } from "../../lib/theme";
import type { Measured } from "../lab/lab";
import { TrustNote } from "../lab/TrustNote";
import { Confirm, Failed, Waiting, When } from "../tenants/parts";
import { evidenceOf, intervalOf, replayIn, startOf, waited } from "./drafts";
import { flat, shown, within } from "./params";
import { Plan, Section } from "./parts";

const REFRESH_MS = 5000;
const tones: Record<Trial["state"], Tone> = { proposed: "plain", rejected: "plain", canary: "warn", promoted: "good", rolled_back: "bad", aborted: "bad" };
const MODES = [
  { value: "off", label: "Off" },
  { value: "advise", label: "Advise" },
  { value: "automatic", label: "Automatic" },
] as const;
const MEANING: Record<Tuning["mode"], string> = {
  off: "Tuning is off.",
  advise: "Candidates are replayed on recent traffic and listed; an operator starts them.",
  automatic: "Candidates that win become canaries, and are kept or rolled back by the guard rails.",
};
const PART_HELP: Record<string, string> = {
  attainment: "share of all requests, refused ones included, that met their SLO; higher is better",
  tail: "how late the latest tenth of requests was, refused ones included; lower is better",
};
const isTier = (name: string): boolean => name.startsWith("attainment.");

/** Attainment and tail as bars from 0 to 1; labelled, with each tier's. */
function Parts({ parts, labelled }: { parts: Trial["parts"]; labelled?: boolean }) {
  const dark = useDark();
  const names = Object.keys(parts).filter((name) => labelled || !isTier(name));
  if (names.length === 0) return <span className="text-faint">{NONE}</span>;
  return (
    <div className={labelled ? "space-y-1.5" : "flex w-28 flex-col gap-0.5"} role="img" aria-label={names.map((name) => `${name.replace(".", " of ")} ${parts[name]?.toFixed(2) ?? "unknown"}`).join(", ")}>
      {names.map((name, i) => (
        <div key={name} title={`${name.replace(".", " of ")} ${parts[name]?.toFixed(3) ?? ""}${PART_HELP[name] ? `: ${PART_HELP[name]}` : ""}`}>
          {labelled && (
            <p className="flex justify-between gap-3 text-sm">
              <span>
                {name.replace(".", " of ")} <span className="text-2xs text-faint">{PART_HELP[name]}</span>
              </span>
              <span className="font-medium">{parts[name]?.toFixed(3) ?? NONE}</span>
            </p>
          )}
          <div className={`overflow-hidden rounded-full bg-raised ${labelled ? "h-2" : "h-1"}`}>
            <div className="h-full" style={{ width: `${Math.min(1, Math.max(0, parts[name] ?? 0)) * 100}%`, background: category(i, dark) }} />
          </div>
        </div>
      ))}
    </div>
  );
}

/** The study under way with its progress, or what came of the last one. */
function StudyNote({ pool, study }: { pool: string; study: Study }) {
  const client = useQueryClient();
  const stop = useMutation({
    mutationFn: () => send("POST", `pools/${pool}/study/stop`),
    onSuccess: () => {
      notify("The study is stopped.");
      void client.invalidateQueries({ queryKey: ["tuning"] });
    },
    onError: (error) => notify(error.message),
  });
  const running = study.state === "running";
  const share = Math.min(1, study.done / Math.max(1, study.total));
  return (
    <div className="panel flex flex-wrap items-center gap-x-4 gap-y-2 p-4" data-testid="study">
      <Badge tone={running ? "warn" : "plain"}>{running ? "study under way" : `last study ${study.state}`}</Badge>
      <div className="min-w-0 flex-1 basis-64 text-sm">
        <p>
          {running ? `${study.done} of at most ${study.total} replays` : study.result || "no result"} · {counted(study.requests, "request")} · {study.cpu_s.toFixed(0)} s of processor time · began <When at={study.at} />
        </p>
        {running && (
          <div className="mt-1.5 h-1.5 overflow-hidden rounded-full bg-raised" role="progressbar" aria-label="Replays of the study" aria-valuemin={0} aria-valuemax={study.total} aria-valuenow={study.done}>
            <div className="h-full bg-amber" style={{ width: `${share * 100}%` }} />
          </div>
        )}
      </div>
      {running && (
        <button type="button" className="button" disabled={stop.isPending} onClick={() => stop.mutate()}>
          Stop study
        </button>
      )}
    </div>
  );
}

function Pairs({ title, rows, format, error }: { title: string; rows: Record<string, [number, number]> | undefined; format: (value: number) => string; error?: number }) {
  const found = Object.entries(rows ?? {});
  if (found.length === 0) return null;
  return (
    <table className="w-full text-sm">
      <caption className="label pb-1 text-left">{title}</caption>
      <thead>
        <tr className="text-2xs text-faint">
          <td />
          <th scope="col" className="text-right font-medium">
            before
          </th>
          <th scope="col" className="text-right font-medium">
            with it
          </th>
        </tr>
      </thead>
      <tbody>
        {found.map(([name, [before, after]]) => (
          <tr key={name} className="border-t border-line">
            <th scope="row" className="py-1 text-left font-normal">
              {name}
            </th>
            <td className="text-right">{format(before)}</td>
            <td className="text-right font-medium">
              {format(after)}
              {error !== undefined && <span className="font-normal text-faint"> ({(within(after, error) ?? []).map(format).join(" to ")})</span>}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** One trial's whole story. */
function Story({ trial, pool, trust, traffic, windowMin, onClose }: { trial: Trial; pool: string; trust: Measured | null; traffic: Tuning["traffic"] | undefined; windowMin: number | undefined; onClose: () => void }) {
  const { gate, guard } = trial;
  const evidence = Object.entries(guard.evidence ?? {});
  return (
    <Sheet title={`Trial ${trial.id}`} subtitle={trial.reason} onClose={onClose}>
      <div className="min-h-0 flex-1 space-y-5 overflow-y-auto px-5 py-4">
        <p className="flex flex-wrap items-center gap-2 text-sm">
          <Badge tone={tones[trial.state]}>{words(trial.state)}</Badge>
          <span className="text-soft">
            against version {trial.base}
            {trial.version !== null && `, served as version ${trial.version}`}
            {trial.requests > 0 && `, replayed on ${counted(trial.requests, "request")}`}
          </span>
        </p>
        <section>
          <h3 className="label mb-1">{trial.setting ? "Setting" : "Parameters"}</h3>
          <dl className="text-sm">
            {Object.entries(trial.setting ? flat(trial.setting) : trial.params).map(([name, value]) => (
              <div key={name} className="flex justify-between gap-4 border-t border-line py-1">
                <dt className="text-soft">{name}</dt>
                <dd className="text-right font-medium break-all">{shown(value)}</dd>
              </div>
            ))}
          </dl>
        </section>
        {trial.state === "proposed" && !trial.ended_at && !gate.reason && <p className="rounded-md bg-raised px-2.5 py-1.5 text-sm">{replayIn(traffic)} Nothing has changed yet.</p>}
        {(trial.reward !== null || gate.reason) && <TrustNote trust={trust} pool={pool} />}
        {trial.reward !== null && (
          <section>
            <h3 className="label mb-2">Reward {trial.reward.toFixed(3)}, and its parts</h3>
            <Parts parts={trial.parts} labelled />
          </section>
        )}
        {gate.reason && (
          <section className="space-y-2">
            <h3 className="label">Replay compared with the active version</h3>
            <p className="rounded-md bg-raised px-2.5 py-1.5 text-sm">
              <Badge tone={gate.passed ? "good" : gate.hurts === false ? "plain" : "bad"}>{gate.passed ? "better" : gate.hurts === false ? "not better, no tier is worse" : "not passed"}</Badge> {gate.reason}
            </p>
            {gate.gain !== undefined && <p className="text-sm text-soft">Reward raised by {gate.gain.toFixed(4)} on average, and by at least {(gate.least_gain ?? 0).toFixed(4)} with 95 % confidence.</p>}
            <Pairs title="In time by tier, of all asked for" rows={gate.attainment} format={(value) => text(percent(value))} />
            <Pairs title="p99 wait by tier and prompt length" rows={gate.waits} format={waited} error={trust?.worst} />
            {trust && gate.waits && <p className="text-2xs text-faint">The ranges in brackets allow for an error of {text(percent(trust.worst))}.</p>}
          </section>
        )}
        {trial.canary_at && (
          <section className="space-y-3">
            <h3 className="label">Guard rails during the trial</h3>
            {guard.reason && <p className="rounded-md bg-raised px-2.5 py-1.5 text-sm">{guard.reason}</p>}
            {evidence.length > 0 && (
              <ul className="space-y-1.5 text-sm">
                {evidence.map(([tier, value]) => (
                  <li key={tier}>
                    <p className="flex justify-between gap-3">
                      <span>{tier}: evidence that it is worse</span>
                      <span className="font-medium">
                        {evidenceOf(value)}; rolled back at {guard.limit?.toFixed(2)}
                      </span>
                    </p>
                    <div className="h-1.5 overflow-hidden rounded-full bg-raised">
                      <div className={`h-full ${value >= (guard.limit ?? Infinity) ? "bg-bad" : "bg-amber"}`} style={{ width: `${Math.min(100, Math.max(0, (value / (guard.limit || 1)) * 100))}%` }} />
                    </div>
                  </li>
                ))}
              </ul>
            )}
            <Pairs title="SLO attainment by tier" rows={guard.attainment} format={(value) => text(percent(value))} />
            <Pairs title="p95 wait by tier" rows={guard.waits} format={waited} />
            {guard.attainment && <p className="text-2xs text-faint">Before: the last {windowMin === undefined ? "window" : `${windowMin} min`} until the trial began, under the load of that time.</p>}
            {!guard.reason && evidence.length === 0 && <p className="text-sm text-soft">Too few requests so far to judge.</p>}
          </section>
        )}
      </div>
    </Sheet>
  );
}

function Mode({ pool, tuning }: { pool: string; tuning: Tuning }) {
  const [wanted, setWanted] = useState<Tuning["mode"] | null>(null);
  const client = useQueryClient();
  return (
    <>
      <Segmented label="Tuning" value={tuning.mode} options={MODES} onChange={(mode) => mode !== tuning.mode && setWanted(mode)} />
      {wanted && (
        <Confirm
          title={`Tuning of pool ${pool}: ${wanted}?`}
          action={`Switch to ${wanted}`}
          onClose={() => setWanted(null)}
          onRun={async () => {
            await send("PUT", `pools/${pool}/tuning`, { mode: wanted });
            notify(`Tuning of pool ${pool} is ${wanted === "off" ? "off" : wanted}.`);
            setWanted(null);
            await client.invalidateQueries({ queryKey: ["tuning"] });
          }}
        >
          <p>{MEANING[wanted]}</p>
          {wanted === "off" && <p>A running trial ends, and the version before it becomes active again.</p>}
        </Confirm>
      )}
    </>
  );
}

interface Asked {
  trial: Trial;
  what: "start" | "stop" | "keep";
}
const ASK: Record<Asked["what"], string> = { start: "Start trial", stop: "End trial", keep: "Keep trial" };

/** What was tried in a pool, what it was worth, and what became of it. */
export function Trials({ pool, tuning, told, onTold: setTold, onNew }: { pool: string; tuning: Tuning | undefined; told: number | null; onTold: (trial: number | null) => void; onNew: () => void }) {
  const client = useQueryClient();
  const trials = useQuery({ queryKey: ["tuning", "trials", pool], queryFn: ({ signal }) => get<Listed<Trial>>(`pools/${pool}/trials`, {}, signal), refetchInterval: REFRESH_MS });
  const [asked, setAsked] = useState<Asked | null>(null);
  const [minutes, setMinutes] = useState("");
  const run = useMutation({ mutationFn: ({ trial, what }: Asked) => send<Trial>("POST", `pools/${pool}/trials/${trial.id}/${what}`, what === "start" ? startOf(minutes) : undefined) });
  const rows = trials.data?.results ?? [];
  const canary = rows.find((row) => row.state === "canary");
  const story = rows.find((row) => row.id === told);

  const columns: Column<Trial>[] = [
    {
      label: "Trial",
      cell: (row) => (
        <button type="button" className="link" onClick={() => setTold(row.id)} aria-label={`${row.id}, open trial details`}>
          {row.id}
        </button>
      ),
    },
    { label: "When", cell: (row) => <When at={row.at} />, className: "whitespace-nowrap" },
    { label: "State", cell: (row) => <Badge tone={tones[row.state]}>{words(row.state)}</Badge> },
    { label: "Reward", right: true, by: (row) => row.reward, cell: (row) => row.reward?.toFixed(3) ?? NONE },
    { label: "Setting", cell: (row) => <span className="text-soft">{row.setting ? [...Object.keys(row.setting.modifiers), row.setting.policy].join(" + ") : NONE}{row.setting?.objects?.map(({ kind, name }) => `, ${kind} ${name}`).join("")}</span>, className: "whitespace-nowrap" },
    { label: "Parts", cell: (row) => <Parts parts={row.parts} /> },
    { label: "Version", right: true, cell: (row) => (row.version === null ? `${row.base} +` : `${row.base} → ${row.version}`) },
    { label: "Why", cell: (row) => <span className="text-soft">{row.reason}</span>, className: "min-w-56" },
    {
      label: "",
      right: true,
      cell: (row) =>
        row.state === "canary" ? (
          <button type="button" className="button" onClick={() => setAsked({ trial: row, what: "stop" })}>
            End trial
          </button>
        ) : row.state === "proposed" && !row.ended_at ? (
          <button type="button" className="button" disabled={!!canary} onClick={() => setAsked({ trial: row, what: "start" })}>
            Start
          </button>
        ) : null,
    },
  ];

  return (
    <Section
      title="Trials"
      actions={
        <>
          {tuning && <Mode pool={pool} tuning={tuning} />}
          <button type="button" className="button" disabled={!!canary} title={canary ? "A trial is running; wait until it has ended." : undefined} onClick={onNew}>
            New trial…
          </button>
        </>
      }
    >
      {tuning && <p className="text-sm text-soft">{MEANING[tuning.mode]} Rewards are simulated; how far such figures are from live ones is under <i>Simulated against live</i>.</p>}
      {tuning?.mode === "automatic" && tuning.waits && (
        <p className="flex flex-wrap items-baseline gap-2 text-sm text-soft" data-testid="waits">
          <Badge tone="warn">winners wait</Badge>
          <span>A winner does not start by itself: {tuning.waits}.</span>
        </p>
      )}
      {tuning?.study && <StudyNote pool={pool} study={tuning.study} />}
      {canary?.canary_until && (
        <div className="panel flex flex-wrap items-center gap-x-4 gap-y-2 p-4" data-testid="canary">
          <Badge tone="warn">trial running</Badge>
          <p className="min-w-0 flex-1 basis-64 text-sm">
            Trial {canary.id} serves as version {canary.version} until {moment(Date.parse(canary.canary_until) / 1000)} ({age(Math.max(0, (Date.parse(canary.canary_until) - Date.now()) / 1000))} left), then it is kept or rolled back.
          </p>
          <button type="button" className="button" onClick={() => setTold(canary.id)}>
            Before and after
          </button>
          <button type="button" className="button" onClick={() => setAsked({ trial: canary, what: "keep" })}>
            Keep it now
          </button>
          <button type="button" className="button-danger" onClick={() => setAsked({ trial: canary, what: "stop" })}>
            End trial
          </button>
        </div>
      )}
      {trials.error ? <Failed error={trials.error} retry={() => void trials.refetch()} /> : !trials.data ? <Waiting /> : <Table label="All trials" rows={rows} columns={columns} id={(row) => String(row.id)} empty="No trials in this pool yet." className="max-h-96" />}
      {story && <Story trial={story} pool={pool} trust={tuning?.trust ?? null} traffic={tuning?.traffic} windowMin={tuning?.effective.window_s === undefined ? undefined : Math.round(tuning.effective.window_s / 60)} onClose={() => setTold(null)} />}
      {asked && (
        <Confirm
          title={`${ASK[asked.what]} ${asked.trial.id}?`}
          action={ASK[asked.what]}
          danger={asked.what === "stop"}
          onClose={() => setAsked(null)}
          onRun={async () => {
            const done = await run.mutateAsync(asked);
            notify(asked.what === "start" ? `Trial ${done.id} serves as version ${done.version}.` : `Trial ${done.id} is ${words(done.state)}.`);
            setAsked(null);
            await client.invalidateQueries({ queryKey: ["tuning"] });
            await client.invalidateQueries({ queryKey: ["catalog"] });
          }}
        >
          {asked.what === "start" ? (
            <Plan minutes={minutes} interval={intervalOf(tuning?.effective)} settings={tuning?.effective} onMinutes={setMinutes} />
          ) : asked.what === "keep" ? (
            <p>It ends now and stays active. Version {asked.trial.base} can be restored with one click.</p>
          ) : (
            <p>Version {asked.trial.base} becomes active again at once. The results of the trial are kept.</p>
          )}
        </Confirm>
      )}
    </Section>
  );
}
