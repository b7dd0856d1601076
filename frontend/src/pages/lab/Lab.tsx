import { keepPreviousData, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Fragment, useState } from "react";
import { Link } from "react-router";
import { get, send } from "../../api/client";
import type { LabRun, Listed } from "../../api/operate";
import { Badge, type Tone } from "../../components/Badge";
import { CopyButton } from "../../components/Copy";
import { Meter } from "../../components/Meter";
import { Notices, notify } from "../../components/Notices";
import { Segmented } from "../../components/Segmented";
import { Empty } from "../../components/Shell";
import { Table, type Column } from "../../components/Table";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { usePoolChoice } from "../policies/PoolChoice";
import { Confirm, Failed, Waiting, When } from "../tenants/parts";
import { ended, figuresOf, groupName, judged, LABELS, lines, progress, refusals, shownFigure, shownInterval, signedFigure, type Figure, type Line } from "./lab";
import { NewRun } from "./NewRun";
import { policyName, supposed } from "./supposed";
import { inZone } from "../../lib/format";
import { TrustNote } from "./TrustNote";
import { Whiskers } from "./Whiskers";

const REFRESH_MS = 2000;
const tones: Record<LabRun["state"], Tone> = { queued: "plain", running: "warn", done: "good", failed: "bad", cancelled: "plain" };
const verdicts = { better: "text-good", worse: "text-bad", unsure: "text-faint", same: "text-faint" } as const;

const EXPLAINED: Record<string, string> = {
  kept: "Requests that kept their SLO, of all that were asked for. A refused request did not.",
  slo: "Requests that kept their SLO, of those that were served.",
  refused: "Requests that the pool's limits refused, of all that were asked for.",
};

function Results({ run }: { run: LabRun }) {
  const [chosen, setChosen] = useState("");
  const results = run.results ?? [];
  const figures = figuresOf(results);
  const figure = figures.find((one) => one.id === chosen) ?? figures[0];
  const { policies } = run.asked;
  if (!figure) return <p className="text-sm text-soft">{ended(run) ? "It ended before every policy had completed one variant, so there is nothing to compare." : "The first figures appear when every policy has completed one variant."}</p>;
  const { id } = figure;
  const groups = lines(results, id, policies);
  const flat = [...groups.values()].flat();
  const variants = results[0]!.variants;
  return (
    <div className="space-y-3">
      <TrustNote trust={run.trust ?? null} pool={run.pool} supposed={supposed(run.asked).length > 0} />
      <Segmented label="Figure" value={id} options={figures.map(({ id: value, label }) => ({ value, label }))} onChange={setChosen} />
      <p className="text-sm text-soft">{EXPLAINED[id]}</p>
      {ended(run) && policies.some((policy) => policy !== "now" && policy !== "unchanged") && (
        <p className="text-sm text-soft">
          Put on trial:{" "}
          {policies
            .filter((policy) => policy !== "now" && policy !== "unchanged")
            .map((policy, i) => (
              <Fragment key={policy}>
                {i > 0 && " · "}
                <Link className="link" to={`/policies?${new URLSearchParams({ pool: run.pool, draft: policy })}`}>
                  {policy}
                </Link>
              </Fragment>
            ))}
          . It is replayed as a draft first, and then tried for a chosen time under guard rails.
        </p>
      )}
      {id === "refused" && (
        <ul className="text-sm text-soft" aria-label="Reasons">
          {refusals(results, policies).map(({ policy, text }) => (
            <li key={policy}>
              {policyName(policy)}: {text}
            </li>
          ))}
        </ul>
      )}
      <div className="grid items-start gap-4 xl:grid-cols-2 wide:grid-cols-[52rem_minmax(0,1fr)]">
        <section className="panel p-4" aria-label="Plot">
          <h3 className="mb-2 text-sm font-medium">
            {figure.label} <span className="text-2xs font-normal text-faint">{variants === 1 ? "one variant, so no interval" : `mean of ${variants} variants and 95 % interval`}; {figure.more ? "more" : "less"} is better</span>
          </h3>
          <Whiskers groups={groups} figure={figure} policies={policies} />
        </section>
        <Table label={`${figure.label} by group and policy`} rows={flat} columns={resultColumns(figure, policies, variants)} id={(row) => `${row.group} ${row.policy}`} empty="No group has a value for this figure." />
      </div>
    </div>
  );
}

const resultColumns = (figure: Figure, policies: readonly string[], variants: number): Column<Line>[] => [
  { label: "Group", by: (row) => groupName(row.group), cell: (row) => groupName(row.group) },
  {
    label: "Policy",
    className: "max-w-48",
    cell: (row) => (
      <span className="block truncate" title={policyName(row.policy)}>
        {LABELS[policies.indexOf(row.policy)]}: {policyName(row.policy)}
      </span>
    ),
  },
  { label: figure.label, right: true, by: (row) => row.own.mean, cell: (row) => shownFigure(row.own.mean, figure.unit) },
  { label: "95 % interval", right: true, cell: (row) => <span className="text-soft">{variants === 1 ? "unknown" : shownInterval(row.own, figure.unit)}</span> },
  {
    label: "Against A",
    right: true,
    by: (row) => row.difference?.mean,
    cell: (row) => {
      const verdict = judged(row, figure);
      if (!verdict || !row.difference) return <span className="text-faint">–</span>;
      return (
        <span className={verdicts[verdict]} title={variants === 1 ? "of one variant" : `${signedFigure(row.difference.low, figure.unit)} to ${signedFigure(row.difference.high, figure.unit)}, paired by variant`}>
          {signedFigure(row.difference.mean, figure.unit)} <span className="text-2xs">{verdict === "unsure" ? "inconclusive" : verdict === "same" ? "the same" : verdict}</span>
        </span>
      );
    },
  },
];

/** One run: how far it is, and what it found. */
function Run({ id, onOpen, onClose }: { id: string; onOpen: (run: LabRun) => void; onClose: () => void }) {
  const client = useQueryClient();
  const [cancelling, setCancelling] = useState(false);
  const { data: run, error, refetch } = useQuery({
    queryKey: ["lab", "run", id],
    queryFn: ({ signal }) => get<LabRun>(`lab/runs/${id}`, {}, signal),
    refetchInterval: ({ state }) => (state.data && ended(state.data) ? false : REFRESH_MS),
  });
  const again = useMutation({
    mutationFn: () => send<LabRun>("POST", `lab/runs/${id}/again`),
    onSuccess: (made) => {
      notify(made.notice || "Runs the same comparison again with the current engines.");
      onOpen(made);
    },
    onError: (problem) => notify(problem.message),
  });
  if (error) return <Failed error={error} retry={() => void refetch()} />;
  if (!run) return <Waiting />;
  const { ratio, text } = progress(run);
  const changes = supposed(run.asked);
  return (
    <section className="space-y-4" aria-labelledby="run">
      <div className="panel space-y-3 p-4">
        <div className="flex flex-wrap items-start gap-x-4 gap-y-2">
          <div className="min-w-0 flex-1 basis-72">
            <h2 id="run" className="flex flex-wrap items-center gap-2 text-base font-semibold">
              {run.name} <Badge tone={tones[run.state]}>{run.state}</Badge>
            </h2>
            <p className="text-sm text-soft">
              On {inZone(run.recording)}, pool {run.pool}, {run.asked.variants} variants; by {run.author}, <When at={run.at} />
            </p>
            {changes.length > 0 && (
              <p className="text-sm" data-testid="supposed">
                <span className="text-soft">Supposed:</span> {changes.join("; ")}
              </p>
            )}
          </div>
          <div className="flex flex-wrap gap-2">
            {!ended(run) && (
              <button type="button" className="button" onClick={() => setCancelling(true)}>
                Cancel run
              </button>
            )}
            <button type="button" className="button" disabled={again.isPending} onClick={() => again.mutate()}>
              Run again
            </button>
            <CopyButton text={`${location.origin}/lab?run=${run.id}`} label="Copy link" />
            <button type="button" className="button" onClick={onClose}>
              All runs
            </button>
          </div>
        </div>
        {run.problem && <p className="rounded-md bg-bad-bg px-3 py-2 text-sm text-bad">{run.problem}</p>}
        {run.state !== "done" && (
          <div>
            <Meter ratio={ratio} label="Progress" />
            <p className="mt-1 text-2xs text-faint" data-testid="progress">
              {text}
            </p>
          </div>
        )}
      </div>
      <Results run={run} />
      {cancelling && (
        <Confirm
          title={`Cancel "${run.name}"?`}
          action="Cancel the run"
          danger
          onClose={() => setCancelling(false)}
          onRun={async () => {
            await send("POST", `lab/runs/${id}/cancel`);
            setCancelling(false);
            await client.invalidateQueries({ queryKey: ["lab"] });
          }}
        >
          <p>Results so far are kept.</p>
        </Confirm>
      )}
    </section>
  );
}

function Runs({ onOpen }: { onOpen: (run: LabRun) => void }) {
  const { data, error, refetch } = useQuery({ queryKey: ["lab", "runs"], queryFn: ({ signal }) => get<Listed<LabRun>>("lab/runs", {}, signal), refetchInterval: 5000, placeholderData: keepPreviousData });
  if (error) return <Failed error={error} retry={() => void refetch()} />;
  if (!data) return <Waiting />;
  const columns: Column<LabRun>[] = [
    {
      label: "Run",
      className: "min-w-44",
      cell: (run) => (
        <button type="button" className="link text-left" onClick={() => onOpen(run)}>
          {run.name}
        </button>
      ),
    },
    {
      label: "State",
      cell: (run) => (
        <span className="inline-flex items-center gap-2 whitespace-nowrap">
          <Badge tone={tones[run.state]}>{run.state}</Badge>
          {!ended(run) && <span className="text-2xs text-faint">{progress(run).text}</span>}
        </span>
      ),
    },
    { label: "Policies", className: "min-w-52 text-soft", cell: (run) => run.asked.policies.map(policyName).join(", ") },
    { label: "Supposed", className: "min-w-44 text-soft", cell: (run) => supposed(run.asked).join("; ") || <span className="text-faint">–</span> },
    { label: "Recording", className: "min-w-44 text-soft", cell: (run) => inZone(run.recording) },
    { label: "Pool", cell: (run) => run.pool },
    { label: "By", cell: (run) => run.author },
    { label: "When", cell: (run) => <When at={run.at} /> },
  ];
  return <Table label="Runs" rows={data.results} columns={columns} id={(run) => String(run.id)} empty="No runs yet. Try what another policy would have done with the last hour of traffic." />;
}

/** What if: policies on recorded traffic, side by side. */
export function Lab() {
  const [query, setQuery] = useAddress();
  const { pools } = usePoolChoice();
  const client = useQueryClient();
  const set = (name: "run" | "new", value: string | null) =>
    setQuery((old) => {
      old.delete("new");
      if (value === null) old.delete(name);
      else old.set(name, value);
      return old;
    });
  if (user.role === "member")
    return (
      <Empty title="This page is for operators">
        <p>Recordings contain the traffic of every tenant.</p>
      </Empty>
    );
  const open = (run: LabRun) => set("run", String(run.id));
  const id = query.get("run");
  return (
    <>
      <title>Lab · Quartermaster</title>
      <div className="mb-4 flex flex-wrap items-end gap-x-4 gap-y-2">
        <div className="mr-auto">
          <h1 className="text-lg font-semibold tracking-tight">Lab</h1>
          <p className="text-sm text-soft">Replays recorded traffic on simulated engines: other policies, more load, another share, a new tenant, a lost replica.</p>
        </div>
        <button type="button" className="button-primary" disabled={pools.length === 0} onClick={() => set("new", "run")}>
          What if…
        </button>
      </div>
      {id ? <Run key={id} id={id} onOpen={open} onClose={() => set("run", null)} /> : <Runs onOpen={open} />}
      {query.get("new") && pools.length > 0 && (
        <NewRun
          pools={pools}
          onClose={() => set("new", null)}
          onMade={(run) => {
            notify(run.notice || `"${run.name}" was started.`);
            void client.invalidateQueries({ queryKey: ["lab"] });
            open(run);
          }}
        />
      )}
      <Notices />
    </>
  );
}
