import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { get, send } from "../../api/client";
import type { Listed, PolicyInfo, Trust, Tuning, Version } from "../../api/operate";
import { Badge } from "../../components/Badge";
import { Notices, notify } from "../../components/Notices";
import { NowBadge, unknownSince } from "../../components/Outages";
import { Empty } from "../../components/Shell";
import { Table, type Column } from "../../components/Table";
import { useOutages } from "../../feed/live";
import { hides } from "../../feed/outages";
import { counted, percent, seconds, text } from "../../lib/format";
import { useAddress } from "../../lib/useAddress";
import { user } from "../../lib/page";
import { apart } from "../lab/lab";
import { Confirm, Failed, Waiting, When } from "../tenants/parts";
import { ChangePolicy, NewTrial } from "./ChangePolicy";
import { draftOf, intervalOf } from "./drafts";
import { changesOf, difference, inForce, previous, shown, uncompared } from "./params";
import { Partition } from "./Partition";
import { Diff, Section } from "./parts";
import { PoolChoice, usePoolChoice } from "./PoolChoice";
import { Trials } from "./Trials";

const REFRESH_MS = 10_000;

function Fields({ label, values, known = [], none = "defaults" }: { label: string; values: Record<string, unknown>; known?: PolicyInfo["params"] | undefined; none?: string }) {
  const units = Object.fromEntries(known.map(({ name, unit }) => [name, unit]));
  const rows = Object.entries(values);
  return (
    <div className="min-w-0">
      <h3 className="label mb-1">{label}</h3>
      {rows.length === 0 ? (
        <p className="text-sm text-faint">{none}</p>
      ) : (
        <dl className="text-sm">
          {rows.map(([name, value]) => (
            <div key={name} className="flex justify-between gap-4 border-t border-line py-1 first:border-t-0">
              <dt className="shrink-0 text-soft">{name}</dt>
              <dd className="min-w-0 text-right font-medium break-all">
                {shown(value)} {units[name] && <span className="text-2xs font-normal text-faint">{units[name]}</span>}
              </dd>
            </div>
          ))}
        </dl>
      )}
    </div>
  );
}

function Serving({ version, policies, actions }: { version: Version; policies: readonly PolicyInfo[]; actions: ReactNode }) {
  const info = (kind: PolicyInfo["kind"], name: string) => policies.find((one) => one.kind === kind && one.name === name);
  const question = info("ordering", version.policy)?.question;
  return (
    <section className="panel space-y-4 p-4" aria-labelledby="serving">
      <div className="flex flex-wrap items-start justify-between gap-x-6 gap-y-3">
        <div className="min-w-0 flex-1 basis-80">
        <h2 id="serving" className="flex flex-wrap items-center gap-2 text-base font-semibold">
          {version.policy}@{version.number} <NowBadge tone="good">active</NowBadge>
        </h2>
        {question && <p className="text-sm text-soft">{question}</p>}
        {version.at && (
          <p className="mt-1 text-2xs text-faint">
            since <When at={version.at} /> by {version.author || "unknown"}
            {version.reason && `: ${version.reason}`}
          </p>
        )}
        </div>
        {actions}
      </div>
      <div className="grid gap-x-6 gap-y-4 sm:grid-cols-3">
        <Fields label={`Order: ${version.policy}`} values={version.policy_params} known={info("ordering", version.policy)?.params} />
        <Fields label="Modifiers" none="none" values={Object.fromEntries(Object.entries(version.modifiers).map(([name, held]) => [name, Object.keys(held).length ? held : "on"]))} />
        <Fields label={`Routing: ${version.routing}`} values={version.routing_params} known={info("routing", version.routing)?.params} />
      </div>
    </section>
  );
}

/** Of a figure that is in %, and unknown where it is missing. */
const share = (points: number | undefined): string => text(percent(points === undefined ? undefined : points / 100));

/** How far the simulator is from what happened: of the last minutes, replayed for this page, and at the last calibration, which decides about trials. */
function LabTrust({ pool, tuning }: { pool: string; tuning: Tuning | undefined }) {
  const outages = useOutages();
  const hidden = hides(outages, pool);
  // Asked anew when what hid it is over.
  const { data, error } = useQuery({ queryKey: ["tuning", "trust", pool, hidden?.source], queryFn: ({ signal }) => get<Trust>(`pools/${pool}/trust`, { minutes: "10" }, signal), staleTime: 60_000 });
  if (error) return <Failed error={error} />;
  if (!data)
    return (
      <section className="panel p-3" aria-busy="true">
        <h2 className="text-sm font-semibold">Simulated against live</h2>
        <p className="text-2xs text-faint" role="status">
          Replaying the last minutes…
        </p>
        <div className="skeleton mt-2 h-28" />
      </section>
    );
  const fit = data.calibrations[0];
  return (
    <section className="panel p-3" aria-labelledby="trust">
      <h2 id="trust" className="flex flex-wrap items-center gap-2 text-sm font-semibold">
        Simulated against live {data.trust && <NowBadge tone={data.trust.trusted ? "good" : "warn"}>{data.trust.trusted ? "within 10 %" : `off by ${apart(data.trust)}`}</NowBadge>}
      </h2>
      <p className="text-2xs text-faint">Now: the last {data.minutes} minutes as they were, and replayed by the simulator.</p>
      {data.trust ? (
        <table className="mt-2 w-full text-sm">
          <thead>
            <tr className="text-2xs text-faint">
              <td />
              <th scope="col" className="text-right font-medium">
                live
              </th>
              <th scope="col" className="text-right font-medium">
                simulated
              </th>
            </tr>
          </thead>
          <tbody>
            {Object.entries(data.trust.figures).map(([name, [live, simulated]]) => (
              <tr key={name} className="border-t border-line">
                <th scope="row" className="py-1 text-left font-normal">
                  {name.replace(/^\w+/, (figure) => figure.toUpperCase())}
                </th>
                <td className="text-right">{text(seconds(live))}</td>
                <td className="text-right font-medium">{text(seconds(simulated))}</td>
              </tr>
            ))}
            {Object.entries(data.trust.attainment ?? {}).map(([tier, [live, simulated]]) => (
              <tr key={tier} className="border-t border-line">
                <th scope="row" className="py-1 text-left font-normal">
                  SLO, {tier}
                </th>
                <td className="text-right">{share(live)}</td>
                <td className="text-right font-medium">{share(simulated)}</td>
              </tr>
            ))}
            {data.trust.refused && (
              <tr className="border-t border-line">
                <th scope="row" className="py-1 text-left font-normal">
                  Refused
                </th>
                <td className="text-right">{share(data.trust.refused[0])}</td>
                <td className="text-right font-medium">{share(data.trust.refused[1])}</td>
              </tr>
            )}
          </tbody>
        </table>
      ) : (
        <p className="mt-2 text-sm text-soft">{uncompared(data.minutes, fit !== undefined, hidden && unknownSince(hidden))}</p>
      )}
      {tuning && (
        <p className="mt-2 text-2xs text-soft" data-testid="calibrated-trust">
          {tuning.trust ? (
            <>
              At the calibration of <When at={tuning.trust.at} />, which decides about trials: off by at most {apart(tuning.trust)}, on {counted(tuning.trust.requests, "request")}.
            </>
          ) : (
            "Trials are judged by what calibrations measure. None has compared simulated with live figures yet, so how far those of trials are off is unknown."
          )}
        </p>
      )}
      <p className="mt-1 text-2xs text-faint">
        {fit ? (
          <>
            Engine model calibrated <When at={fit.at} />, from {counted(fit.requests, "request")}; its time per token is {text(percent(fit.error))} off on average.
          </>
        ) : (
          "The engine model is not calibrated yet; a published preset is used."
        )}
      </p>
    </section>
  );
}

function History({ versions, onBack }: { versions: readonly Version[]; onBack: (version: Version) => void }) {
  const now = inForce(versions);
  const columns: Column<Version>[] = [
    {
      label: "Version",
      cell: (row) => (
        <span className="whitespace-nowrap">
          {row.policy}@{row.number} {row.serving && <NowBadge tone="good">active</NowBadge>}
        </span>
      ),
    },
    { label: "When", cell: (row) => <When at={row.at} /> },
    {
      label: "By",
      cell: (row) => (
        <span className="whitespace-nowrap">
          {row.author || "–"} {row.author_kind === "optimiser" && <Badge>optimiser</Badge>}
        </span>
      ),
    },
    {
      label: "Reason",
      className: "min-w-44 max-w-96",
      cell: (row) => (
        <>
          {row.reason || <span className="text-faint">no reason given</span>}
          {row.restores !== null && <span className="text-2xs text-faint"> (content of version {row.restores})</span>}
        </>
      ),
    },
    {
      label: "Changed",
      className: "min-w-64",
      cell: (row) => {
        const changes = changesOf(row);
        return changes.length === 0 ? (
          <span className="text-faint">first known version</span>
        ) : (
          <ul className="text-2xs">
            {changes.map(({ name, before, after }) => (
              <li key={name} className="break-all">
                {name}: <span className="text-faint line-through">{shown(before)}</span> {shown(after)}
              </li>
            ))}
          </ul>
        );
      },
    },
    {
      label: "",
      right: true,
      cell: (row) =>
        !row.serving && now && difference(now, row).length > 0 ? (
          <button type="button" className="button" aria-label={`Restore version ${row.number}`} onClick={() => onBack(row)}>
            Restore
          </button>
        ) : null,
    },
  ];
  return <Table label="Policy versions" rows={versions} columns={columns} id={(row) => String(row.number)} empty="No versions yet; the next change creates the first." className="max-h-96" />;
}

function OfPool({ pool }: { pool: string }) {
  const client = useQueryClient();
  const { poolRows } = usePoolChoice(true);
  const versions = useQuery({ queryKey: ["tuning", "versions", pool], queryFn: ({ signal }) => get<Listed<Version>>(`pools/${pool}/versions`, {}, signal), refetchInterval: REFRESH_MS });
  const tuning = useQuery({ queryKey: ["tuning", "mode", pool], queryFn: ({ signal }) => get<Tuning>(`pools/${pool}/tuning`, {}, signal), refetchInterval: REFRESH_MS });
  const policies = useQuery({ queryKey: ["policies"], queryFn: ({ signal }) => get<PolicyInfo[]>("policies", {}, signal), staleTime: Infinity });
  const [back, setBack] = useState<Version | null>(null);
  const [reason, setReason] = useState("");
  const [query, setQuery] = useAddress();
  const draft = draftOf(query.get("draft"));
  const [asked, setAsked] = useState<"change" | "trial" | null>(null);
  const open = draft ? "change" : asked;
  const setOpen = (what: typeof asked) => {
    setAsked(what);
    if (draft)
      setQuery(
        (old) => {
          old.delete("draft");
          return old;
        },
        { replace: true },
      );
  };
  const [told, setTold] = useState<number | null>(null); // the trial whose story is open
  const error = versions.error ?? policies.error;
  if (error) return <Failed error={error} retry={() => void Promise.all([versions.refetch(), policies.refetch()])} />;
  if (!versions.data || !policies.data) return <Waiting />;

  const rows = versions.data.results;
  const row = poolRows.find((one) => one.slug === pool) as unknown as (Omit<Version, "number"> & { policy_version: number }) | undefined;
  // A pool that is older than its versions: what its row says serves.
  const serving = inForce(rows) ?? (row && { ...row, number: row.policy_version, at: "", author: "", reason: "", changes: {}, serving: true });
  const before = previous(rows);
  const refresh = async () => {
    await client.invalidateQueries({ queryKey: ["tuning"] });
    await client.invalidateQueries({ queryKey: ["catalog"] });
    await client.invalidateQueries({ queryKey: ["lengths"] });
  };
  const done = (said: string) => {
    notify(said);
    setOpen(null);
    void refresh();
  };

  const actions = (
    <div className="flex flex-wrap gap-2">
      {before && (
        <button type="button" className="button h-9" onClick={() => setBack(before)}>
          Roll back to {before.policy}@{before.number}
        </button>
      )}
      <button type="button" className="button-primary" onClick={() => setOpen("change")}>
        Change…
      </button>
    </div>
  );
  return (
    <div className="space-y-6">
      {serving && <Serving version={serving} policies={policies.data} actions={actions} />}
      <div className="grid gap-4 lg:grid-cols-3">
        <div className="min-w-0 lg:col-span-2">
          <Partition pool={pool} />
        </div>
        <LabTrust pool={pool} tuning={tuning.data} />
      </div>
      <Trials pool={pool} tuning={tuning.data} told={told} onTold={setTold} onNew={() => setOpen("trial")} />
      <Section title="History">
        <History versions={rows} onBack={setBack} />
      </Section>
      {serving && open === "change" && <ChangePolicy key={query.get("draft")} pool={pool} serving={serving} draft={draft} policies={policies.data} onDone={done} onTrial={(trial) => { done(`Draft ${trial.id} is replayed; nothing has changed yet.`); setTold(trial.id); }} onClose={() => setOpen(null)} />}
      {serving && open === "trial" && <NewTrial pool={pool} serving={serving} policies={policies.data} onDone={done} onClose={() => setOpen(null)} interval={intervalOf(tuning.data?.effective)} settings={tuning.data?.effective} />}
      {back && serving && (
        <Confirm
          title={`Restore ${back.policy}@${back.number} in pool ${pool}?`}
          action={`Roll back to version ${back.number}`}
          danger
          onClose={() => setBack(null)}
          onRun={async () => {
            const now = await send<Version>("POST", `pools/${pool}/rollback`, { version: back.number, reason });
            notify(`${now.policy}@${now.number} serves pool ${pool}, with the content of version ${back.number}.`);
            setBack(null);
            setReason("");
            await refresh();
          }}
        >
          <p>Its content takes effect at once, as a new version. A running trial ends.</p>
          <Diff changes={difference(serving, back)} empty="It is the active version." />
          <label className="block">
            <span className="mb-1 block font-medium text-ink">Reason</span>
            <input className="field w-full" value={reason} maxLength={250} placeholder="optional; for the history" onChange={(event) => setReason(event.target.value)} />
          </label>
        </Confirm>
      )}
    </div>
  );
}

/** What decides in a pool, since when and why, what is tried, and the way back. */
export function Policies() {
  const { pool, pools, isPending } = usePoolChoice(true);
  if (user.role === "member")
    return (
      <Empty title="This page is for operators">
        <p>Policies are changed by operators and admins.</p>
      </Empty>
    );
  return (
    <>
      <title>Policies · Quartermaster</title>
      <div className="flex flex-wrap items-center gap-x-4 gap-y-2">
        <h1 className="text-lg font-semibold tracking-tight">Policies</h1>
        {pools.length > 0 && <PoolChoice />}
      </div>
      <p className="mt-0.5 mb-4 text-sm text-soft">What decides which request runs next and where, with its history.</p>
      {pool ? <OfPool key={pool} pool={pool} /> : isPending ? <Waiting /> : <p className="panel p-6 text-center text-sm text-soft">There is no pool yet.</p>}
      <Notices />
    </>
  );
}
