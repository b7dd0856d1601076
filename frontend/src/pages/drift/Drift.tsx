import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo, useState, type ReactNode } from "react";
import { get, send } from "../../api/client";
import type { ErrorRow, Estimates, EstimatesHistory, Group } from "../../api/operate";
import { Curve } from "../../charts/Curve";
import { TimeChart } from "../../charts/TimeChart";
import { Badge } from "../../components/Badge";
import { NowBadge, UnknownNow } from "../../components/Outages";
import { useFeed, useOutages } from "../../feed/live";
import { isBlind, isHeard } from "../../feed/outages";
import { Notices, notify } from "../../components/Notices";
import { Segmented } from "../../components/Segmented";
import { Table, type Column } from "../../components/Table";
import { compact, NONE, percent, text } from "../../lib/format";
import { user } from "../../lib/page";
import { useDark } from "../../lib/theme";
import { useAddress } from "../../lib/useAddress";
import { PoolChoice, usePoolChoice } from "../policies/PoolChoice";
import { Confirm, Failed, Waiting } from "../tenants/parts";
import { correctedLimits, COVERED, errorPanels, factorPanel, verdict, WINDOWS } from "./data";

const REFRESH_MS = 30_000;
const GROUPS: readonly { value: Group; label: string }[] = [
  { value: "category", label: "Category" },
  { value: "tenant", label: "Tenant" },
  { value: "model", label: "Model" },
  { value: "source", label: "Predictor" },
];
/** A model's own correction is part of its tenant's. */
const SCOPES = GROUPS.filter(({ value }) => value !== "model");
const CATEGORIES_HELP = "All categories";

export function Tile({ label, children, note }: { label: string; children: ReactNode; note?: ReactNode }) {
  return (
    <div className="panel min-w-0 px-4 py-3">
      <dt className="label">{label}</dt>
      <dd className="text-lg leading-7 font-semibold tracking-tight">{children}</dd>
      {note && <dd className="text-2xs text-faint">{note}</dd>}
    </div>
  );
}

const signed = (tokens: number): string => `${tokens > 0 ? "+" : ""}${compact(tokens)}`;

const columns = (label: string): Column<ErrorRow>[] => [
  { label, by: (row) => row.name, cell: (row) => row.name || <span className="text-faint">none</span> },
  { label: "Answers", right: true, by: (row) => row.requests, cell: (row) => compact(row.requests) },
  { label: "Expected", unit: "tokens", right: true, by: (row) => row.expected, cell: (row) => compact(row.expected) },
  { label: "Actual", unit: "tokens", right: true, by: (row) => row.actual, cell: (row) => compact(row.actual) },
  { label: "Mean offset", unit: "tokens", right: true, by: (row) => row.error, cell: (row) => signed(row.error) },
  { label: "Mean error", unit: "tokens", right: true, by: (row) => row.mae, cell: (row) => compact(row.mae) },
  { label: "Prompt error", unit: "tokens", right: true, by: (row) => row.input_mae, cell: (row) => compact(row.input_mae) },
  {
    label: "Within limit",
    right: true,
    by: (row) => row.coverage90,
    cell: (row) => <span className={row.coverage90 < 0.8 ? "font-medium text-warn" : ""}>{text(percent(row.coverage90))}</span>,
  },
];

function Reset({ pools, categories, onClose }: { pools: string[]; categories: string[]; onClose: (done: boolean) => void }) {
  const [pool, setPool] = useState(pools[0] ?? "");
  const [category, setCategory] = useState("");
  return (
    <Confirm
      title="Reset what was learned?"
      action="Reset"
      danger
      onClose={() => onClose(false)}
      onRun={async () => {
        await send("POST", "estimates/reset", { pool, category });
        notify(`${category || "Everything"} of pool ${pool} will be learned again.`);
        onClose(true);
      }}
    >
      <p>Every gateway starts from the base lengths again and corrects them from the next answers, about 100 of them. Stored prompts and histories are kept. The reset is recorded in the audit log.</p>
      <div className="flex flex-wrap gap-3">
        <label className="flex flex-col gap-1">
          <span className="label">Pool</span>
          <select className="field" value={pool} onChange={(event) => setPool(event.target.value)}>
            {pools.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <label className="flex flex-col gap-1">
          <span className="label">Category</span>
          <select className="field" value={category} onChange={(event) => setCategory(event.target.value)}>
            <option value="">{CATEGORIES_HELP}</option>
            {categories.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      </div>
    </Confirm>
  );
}

function LearnedNow({ pools }: { pools: Estimates["pools"] }) {
  if (pools === null) return <p className="text-sm text-soft">Redis does not answer, so what the gateways have learned is <UnknownNow />. The history above comes from the ledger.</p>;
  const rows = Object.entries(pools);
  if (rows.length === 0) return <p className="text-sm text-soft">No gateway has reported what it learned in the last ten minutes.</p>;
  return (
    <ul className="space-y-3 text-sm">
      {rows.map(([pool, { predictor, learned, prompts, calibration = [] }]) => (
        <li key={pool}>
          <p className="font-medium">
            {pool} <Badge>{predictor}</Badge>
          </p>
          <p className="text-soft">
            {compact(learned ?? 0)} answers observed, {compact(prompts ?? 0)} prompts stored{user.role === "member" ? ", of your tenants" : ""}.
          </p>
          {calibration.length > 0 && <p className="text-soft">{correctedLimits(calibration)}</p>}
        </li>
      ))}
    </ul>
  );
}

/** How wrong the predictions of length are, where, and what corrects them. */
export function Drift() {
  const [query, setQuery] = useAddress();
  const { pool, pools } = usePoolChoice();
  const hours = WINDOWS.find((w) => String(w.value) === query.get("hours"))?.value ?? 1;
  const [group, setGroup] = useState<Group>("category");
  const [scope, setScope] = useState<Group>("category");
  const [resetting, setResetting] = useState(false);
  const dark = useDark();
  const outages = useOutages();
  const heard = isHeard(useFeed());
  const blind = isBlind(outages, pool || undefined) || outages.some((one) => one.source === "ledger" && (!pool || one.pool === pool));

  const asked = () => {
    const to = Date.now();
    return { pool, from: new Date(to - hours * 3_600_000).toISOString(), to: new Date(to).toISOString() };
  };
  const options = { placeholderData: keepPreviousData, refetchInterval: REFRESH_MS };
  const now = useQuery({ queryKey: ["estimates", pool, hours], queryFn: ({ signal }) => get<Estimates>("estimates", asked(), signal), ...options });
  const past = useQuery({ queryKey: ["estimates", "history", pool, hours], queryFn: ({ signal }) => get<EstimatesHistory>("estimates/history", asked(), signal), ...options });
  const charts = useMemo(() => (past.data ? [...errorPanels(past.data, dark), factorPanel(past.data.factors, scope, dark)] : []), [past.data, scope, dark]);

  const error = now.error ?? past.error;
  const overall = now.data?.overall ?? undefined;
  const ratio = overall && overall.expected > 0 ? overall.actual / overall.expected : undefined;
  const said = verdict(ratio, overall?.coverage90);
  const known = now.data?.by.category.flatMap((row) => row.name || []) ?? [];
  const setHours = (value: number) =>
    setQuery((old) => {
      old.set("hours", String(value));
      return old;
    }, { replace: true });
  const from = past.data ? Date.parse(past.data.from) / 1000 : 0;
  const to = past.data ? Date.parse(past.data.to) / 1000 : 1;

  return (
    <>
      <title>Drift · Quartermaster</title>
      <div className="flex flex-wrap items-center gap-x-4 gap-y-2">
        <h1 className="flex flex-wrap items-center gap-2 text-lg font-semibold tracking-tight">
          Drift {said && (heard || blind) && <NowBadge tone={said.tone}>{blind ? "As of the outage" : said.text}</NowBadge>}
        </h1>
        <PoolChoice all />
        <div className="flex flex-wrap items-center gap-x-4 gap-y-2 sm:ml-auto">
          <Segmented label="Time" value={hours} options={WINDOWS} onChange={setHours} />
          {user.role !== "member" && (
            <button type="button" className="button" disabled={pools.length === 0} onClick={() => setResetting(true)}>
              Reset…
            </button>
          )}
        </div>
      </div>
      <p className="mt-0.5 mb-4 text-sm text-soft">Expected and actual answer lengths.</p>
      {error ? (
        <Failed error={error} retry={() => void Promise.all([now.refetch(), past.refetch()])} />
      ) : !now.data || !past.data ? (
        <Waiting />
      ) : (
        <div className="space-y-4">
          <dl className="grid grid-cols-2 gap-3 lg:grid-cols-4">
            <Tile label="Answers compared" note="predicted and completed">
              {compact(overall?.requests ?? 0)}
            </Tile>
            <Tile label="Actual to expected" note={overall ? `${compact(overall.actual)} of ${compact(overall.expected)} tokens` : undefined}>
              {ratio === undefined ? NONE : `${ratio.toFixed(2)}x`}
            </Tile>
            <Tile label="Mean error" note={overall ? `prompts: ${compact(overall.input_mae)} tokens` : undefined}>
              {overall ? `${compact(overall.mae)} tokens` : NONE}
            </Tile>
            <Tile label="Within the 90 % limit" note={`target ${text(percent(COVERED))}`}>
              {text(percent(overall?.coverage90))}
            </Tile>
          </dl>
          <div className="grid gap-3 lg:grid-cols-3">
            {charts.slice(0, 3).map((panel) => (
              <TimeChart key={panel.id} panel={panel} from={from} to={to} dark={dark} onZoom={() => undefined} onReset={() => undefined} />
            ))}
          </div>
          <div className="grid gap-3 lg:grid-cols-3">
            <div className="min-w-0 space-y-2 lg:col-span-2">
              <Segmented label="Corrections by" value={scope} options={SCOPES} onChange={setScope} />
              {charts[3] && <TimeChart panel={charts[3]} from={from} to={to} dark={dark} onZoom={() => undefined} onReset={() => undefined} />}
              <section className="panel p-3" aria-labelledby="learned">
                <h2 id="learned" className="mb-2 text-sm font-semibold">
                  Learned so far
                </h2>
                <LearnedNow pools={now.data.pools} />
              </section>
            </div>
            <section className="panel p-3" aria-labelledby="calibration">
              <h2 id="calibration" className="text-sm font-semibold">
                Calibration
              </h2>
              <p className="mb-2 text-2xs text-faint">Share of answers within each quantile of their distribution, %. On the dashed line it is right; below it, answers are longer than predicted.</p>
              {now.data.calibration.length > 0 ? (
                <Curve label={`Calibration: ${now.data.calibration.map((p) => `${Math.round(p.level * 100)} % predicted, ${Math.round(p.share * 100)} % observed`).join("; ")}`} points={now.data.calibration.map(({ level, share }) => ({ x: level, y: share }))} />
              ) : (
                <p className="py-10 text-center text-sm text-faint">No predicted answer completed in this period.</p>
              )}
            </section>
          </div>
          <section aria-labelledby="errors">
            <div className="mb-2 flex flex-wrap items-center gap-3">
              <h2 id="errors" className="text-sm font-semibold">
                Estimate against actual, by
              </h2>
              <Segmented label="Group by" value={group} options={GROUPS} onChange={setGroup} />
            </div>
            <Table key={group} label="Estimate against actual" rows={now.data.by[group]} columns={columns(GROUPS.find((g) => g.value === group)!.label)} id={(row) => row.name ?? ""} empty="No predicted answer completed in this period." />
          </section>
        </div>
      )}
      {resetting && (
        <Reset
          pools={pool ? [pool] : pools}
          categories={known}
          onClose={(done) => {
            setResetting(false);
            if (done) void now.refetch();
          }}
        />
      )}
      <Notices />
    </>
  );
}
