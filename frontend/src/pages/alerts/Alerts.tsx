import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import type { Pool, Tenant } from "../../api/catalog";
import { get, send } from "../../api/client";
import { following, type AlertPage, type AlertRow, type AlertRule, type OpenAlerts } from "../../api/operate";
import { Badge, type Tone } from "../../components/Badge";
import { ResourceForm } from "../../components/form/ResourceForm";
import { Icon } from "../../components/icons";
import { Notices, notify } from "../../components/Notices";
import { since } from "../../components/Outages";
import { Segmented } from "../../components/Segmented";
import { Sheet } from "../../components/Sheet";
import { Table, type Column } from "../../components/Table";
import { useFeed, useOutages } from "../../feed/live";
import { asOutage, isHeard, type Outage } from "../../feed/outages";
import { age, inZone, NONE } from "../../lib/format";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { useHeld } from "../../lib/useHeld";
import { useCatalog } from "../tenants/data";
import { reasonOf, type PoolStanding } from "../tenants/fleet";
import { useJudged } from "../tenants/StandingsNow";
import { Marks, Ways } from "./AlertParts";
import { Confirm, Failed, Waiting, When } from "../tenants/parts";
import { Channels, useChannels } from "./Channels";
import { Rehearsal } from "./Rehearsal";
import { kindLabel, lastedS, ONE_TIME, ruleSpecs, sentence, stateLabel } from "./rules";

const REFRESH_MS = 10_000;
const mayWrite = user.role === "admin";
const tones: Record<string, Tone> = { critical: "bad", warning: "warn" };

const STATES = [
  { value: "", label: "All" },
  { value: "resolved", label: "Resolved" },
  { value: ONE_TIME, label: "One-time" },
] as const;

/** Pools whose rules are not evaluated: nobody would be told. */
function Unwatched({ away }: { away: readonly Outage[] }) {
  return (
    <ul className="unknown panel space-y-1 p-4 text-sm" aria-label="Rules that are not evaluated" data-unknown>
      {away.map((one) => (
        <li key={one.pool ?? ""}>
          <span className="font-medium">
            The rules of {one.pool ? `pool ${one.pool}` : "this installation"} cannot be evaluated {since(one)}.
          </span>{" "}
          <span className="text-soft">Whether something is wrong there is unknown, and only a missing leader or Redis opens an alert meanwhile.</span>
        </li>
      ))}
    </ul>
  );
}

/** What is wrong with a pool while no rule has said so yet: a rule opens an alert once its condition has lasted. */
function Failing({ pools }: { pools: readonly PoolStanding[] }) {
  return (
    <div className="panel border-warn p-4 text-sm text-soft" data-testid="failing">
      <p>No alert is open, but not everything is healthy:</p>
      <ul className="mt-1">
        {pools.map(({ pool, ...standing }) => (
          <li key={pool}>
            <Link className="link" to={`/pools/${encodeURIComponent(pool)}`}>
              {pool}
            </Link>
            : {reasonOf(standing)}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Open({ alerts, blind, partly }: { alerts: readonly AlertRow[]; blind: boolean; partly: boolean }) {
  const { heard, pools } = useJudged();
  const failing = pools.filter(({ level }) => heard && level === "failing");
  if (alerts.length === 0 && blind) return <p className="panel p-4 text-sm text-soft">No alert was open when the rules were last evaluated. Whether one should be open now is unknown.</p>;
  if (alerts.length === 0 && failing.length > 0) return <Failing pools={failing} />;
  if (alerts.length === 0 && partly) return <p className="panel p-4 text-sm text-soft">No alert is open{user.role === "member" ? " for your tenants" : ""}.</p>;
  if (alerts.length === 0)
    return (
      <p className="panel flex items-center gap-2 p-4 text-sm text-soft">
        <span className="text-good">
          <Icon name="check" />
        </span>
        All clear: no alert is open{user.role === "member" ? " for your tenants" : ""}.
      </p>
    );
  return (
    <ul className="space-y-2" aria-label="Open alerts">
      {alerts.map((alert) => (
        <li key={alert.id} className="panel flex flex-wrap items-start gap-x-3 gap-y-1 p-4" data-alert={alert.rule_name}>
          <Badge tone={tones[alert.severity]}>{alert.severity}</Badge>
          <div className="min-w-0 flex-1 basis-72">
            <p className="font-medium">
              {user.role === "member" ? (
                inZone(alert.line)
              ) : (
                <Link className="link" to={`/alerts/${alert.id}`}>
                  {inZone(alert.line)}
                </Link>
              )}
            </p>
            <p className="mt-0.5 text-sm text-soft">
              {alert.rule_name}
              {alert.pool && <> · pool {alert.pool}</>}
              {alert.tenant && <> · {alert.tenant}</>}
            </p>
            <Ways alert={alert} />
          </div>
          <div className="text-sm text-soft sm:text-right">
            <p>
              for {age(lastedS(alert.at, null, Date.now()))}, since <When at={alert.at} />
            </p>
            <Marks alert={alert} />
          </div>
        </li>
      ))}
    </ul>
  );
}

const historyColumns: Column<AlertRow>[] = [
  { label: "Started", cell: (row) => <When at={row.at} />, className: "whitespace-nowrap" },
  { label: "Duration", right: true, cell: (row) => (row.state === ONE_TIME ? "" : age(lastedS(row.at, row.resolved_at, Date.now()))) },
  { label: "State", cell: (row) => <Badge tone={row.state === "open" ? tones[row.severity] : "plain"}>{stateLabel(row.state)}</Badge> },
  { label: "Subject", cell: (row) => kindLabel(row.kind), className: "whitespace-nowrap" },
  {
    label: "Message",
    className: "min-w-72",
    cell: (row) => (
      <>
        {user.role === "member" ? (
          inZone(row.line)
        ) : (
          <Link className="link" to={`/alerts/${row.id}`}>
            {inZone(row.line)}
          </Link>
        )}
        {row.resolution && <p className="text-2xs text-faint">{row.resolution}</p>}
      </>
    ),
  },
  { label: "Tenant", cell: (row) => row.tenant || <span className="text-faint">–</span> },
  { label: "Assigned", cell: (row) => row.assigned_to || <span className="text-faint">–</span> },
  { label: "Sent", cell: (row) => <When at={row.delivered_at} none="no" /> },
];

function History() {
  const [state, setState] = useState<(typeof STATES)[number]["value"]>("");
  const { data, error, hasNextPage, fetchNextPage, isFetchingNextPage, refetch } = useInfiniteQuery({
    queryKey: ["alerts", "list", state],
    queryFn: ({ pageParam, signal }) => (pageParam ? following<AlertPage>(pageParam, signal) : get<AlertPage>("alerts", { state }, signal)),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
    refetchInterval: ({ state: held }) => ((held.data?.pages.length ?? 0) > 1 ? false : REFRESH_MS),
  });
  return (
    <section aria-labelledby="history" className="space-y-2">
      <div className="flex flex-wrap items-center gap-3">
        <h2 id="history" className="text-sm font-semibold">
          History
        </h2>
        <Segmented label="Shown" value={state} options={STATES} onChange={setState} />
      </div>
      {error ? <Failed error={error} retry={() => void refetch()} /> : !data ? <Waiting /> : <Table label="Past alerts" rows={data.pages.flatMap((page) => page.results)} columns={historyColumns} id={(row) => String(row.id)} empty="No alerts yet." />}
      {hasNextPage && (
        <button type="button" className="button" disabled={isFetchingNextPage} onClick={() => void fetchNextPage()}>
          {isFetchingNextPage ? "Loading…" : "Load older alerts"}
        </button>
      )}
    </section>
  );
}

/** Where a rule cannot be evaluated. One about leaders is looked at without any, as long as alerts can be stored. */
export const blindFor = (rule: Pick<AlertRule, "pool" | "kind">, away: readonly Outage[]): readonly Outage[] =>
  away.filter(({ pool }) => pool === undefined || (rule.kind !== "no_leader" && (rule.pool === "" || pool === rule.pool)));

/** Since when, once for pools that share the moment: "since 10:40:54", "a since 10:40:54, b since 10:41:02". */
export function blindSince(blind: readonly Outage[]): string {
  const moments = new Set(blind.map((one) => since(one)));
  if (moments.size === 1) return [...moments][0]!;
  return blind.map((one) => `${one.pool ?? ""} ${since(one)}`.trim()).join(", ");
}

/** Whether a rule is on, and since when it cannot be evaluated somewhere. */
function RuleState({ rule, away }: { rule: AlertRule; away: readonly Outage[] }) {
  const blind = blindFor(rule, away);
  if (!rule.enabled || blind.length === 0) return <Badge tone={rule.enabled && away.length === 0 ? "good" : "plain"}>{rule.enabled ? "on" : "off"}</Badge>;
  return (
    <>
      <Badge tone="warn">on, not evaluated</Badge>
      <span className="mt-0.5 block text-2xs text-warn">{blindSince(blind)}</span>
    </>
  );
}

function Switch({ rule }: { rule: AlertRule }) {
  const client = useQueryClient();
  const turn = useMutation({
    mutationFn: () => send<AlertRule>("PATCH", `alert-rules/${rule.id}`, { enabled: !rule.enabled }),
    onSuccess: (saved) => {
      notify(`"${saved.name}" is ${saved.enabled ? "on" : "off"}.`);
      return client.invalidateQueries({ queryKey: ["alerts"] });
    },
    onError: (error) => notify(error.message),
  });
  return (
    <button type="button" className="button" aria-pressed={rule.enabled} disabled={turn.isPending} onClick={() => turn.mutate()}>
      {rule.enabled ? "Switch off" : "Switch on"}
    </button>
  );
}

function Rules({ away }: { away: readonly Outage[] }) {
  const [query, setQuery] = useAddress();
  const client = useQueryClient();
  const rules = useQuery({ queryKey: ["alerts", "rules"], queryFn: ({ signal }) => get<AlertRule[]>("alert-rules", {}, signal), refetchInterval: REFRESH_MS });
  const pools = useCatalog<Pool>("pools");
  const tenants = useCatalog<Tenant>("tenants");
  const channels = useChannels();
  const [deleted, setDeleted] = useState<AlertRule | null>(null);
  const asked = query.get("rule");
  const edited = useHeld(asked, rules.data, (rule) => String(rule.id));
  const open = (id: string | null) =>
    setQuery((old) => {
      if (id === null) old.delete("rule");
      else old.set("rule", id);
      return old;
    });
  const refresh = () => client.invalidateQueries({ queryKey: ["alerts"] });

  const columns: Column<AlertRule>[] = [
    {
      label: "Rule",
      by: (rule) => rule.name,
      className: "min-w-44",
      cell: (rule) =>
        mayWrite ? (
          <button type="button" className="link text-left" onClick={() => open(String(rule.id))}>
            {rule.name}
          </button>
        ) : (
          rule.name
        ),
    },
    { label: "Condition", className: "min-w-80 text-soft", cell: sentence },
    { label: "Severity", by: (rule) => rule.severity, cell: (rule) => <Badge tone={tones[rule.severity]}>{rule.severity}</Badge> },
    { label: "Open", right: true, by: (rule) => rule.open, cell: (rule) => (rule.open ? <Badge tone={tones[rule.severity]}>{rule.open}</Badge> : rule.enabled && blindFor(rule, away).length > 0 ? NONE : "0") },
    { label: "State", by: (rule) => Number(rule.enabled), cell: (rule) => <RuleState rule={rule} away={away} /> },
    ...(mayWrite
      ? [
          {
            label: "",
            right: true,
            cell: (rule: AlertRule) => (
              <span className="inline-flex gap-2">
                <Switch rule={rule} />
                <button type="button" className="button" aria-label={`Delete ${rule.name}`} onClick={() => setDeleted(rule)}>
                  Delete
                </button>
              </span>
            ),
          },
        ]
      : []),
  ];

  return (
    <section aria-labelledby="rules" className="space-y-2">
      <div className="flex flex-wrap items-center gap-3">
        <h2 id="rules" className="mr-auto text-sm font-semibold">
          Rules
        </h2>
        {mayWrite && (
          <button type="button" className="button" onClick={() => open("new")}>
            <Icon name="plus" /> Add a rule
          </button>
        )}
      </div>
      {rules.error ? <Failed error={rules.error} retry={() => void rules.refetch()} /> : !rules.data ? <Waiting /> : <Table label="Alert rules" rows={rules.data} columns={columns} id={(rule) => String(rule.id)} empty="There are no rules, so no alerts are raised." />}
      {mayWrite && pools.data && tenants.data && !channels.isPending && (asked === "new" || edited) && (
        <Sheet title={edited ? edited.name : "A new rule"} subtitle="Evaluated every five seconds by each pool's leader." onClose={() => open(null)}>
          <ResourceForm<AlertRule>
            key={asked}
            specs={ruleSpecs(pools.data.map((pool) => pool.slug), tenants.data.map((tenant) => tenant.slug), (channels.data ?? []).map((channel) => channel.name))}
            row={edited}
            method={edited ? "PATCH" : "POST"}
            path={edited ? `alert-rules/${edited.id}` : "alert-rules"}
            submit={edited ? "Save" : "Add rule"}
            extra={(typed) => Object.fromEntries(Object.entries(typed).map(([name, value]) => [name, value === null && (name === "pool" || name === "tenant") ? "" : value]))}
            meaning={(whole) => <Rehearsal rule={whole} />}
            onCancel={() => open(null)}
            onSaved={(saved) => {
              notify(`"${saved.name}" was saved.`);
              open(null);
              void refresh();
            }}
          />
        </Sheet>
      )}
      {deleted && (
        <Confirm
          title={`Delete the rule "${deleted.name}"?`}
          action="Delete"
          danger
          onClose={() => setDeleted(null)}
          onRun={async () => {
            await send("DELETE", `alert-rules/${deleted.id}`);
            notify(`"${deleted.name}" was deleted.`);
            setDeleted(null);
            await refresh();
          }}
        >
          <p>{sentence(deleted)}.</p>
          <p>This condition is no longer evaluated. {deleted.open ? `Its ${deleted.open} open alert${deleted.open > 1 ? "s end" : " ends"}. ` : ""}Past alerts are kept.</p>
        </Confirm>
      )}
    </section>
  );
}

/** What is wrong now, what was, and when to be told. */
export function Alerts() {
  const open = useQuery({ queryKey: ["alerts", "now"], queryFn: ({ signal }) => get<AlertPage>("alerts", { state: "open", limit: "200" }, signal), refetchInterval: REFRESH_MS });
  const counted = useQuery({ queryKey: ["alerts", "open"], queryFn: ({ signal }) => get<OpenAlerts>("alerts/open", {}, signal), refetchInterval: REFRESH_MS });
  const outages = useOutages();
  const feed = useFeed();
  // "All clear" is said once it is known that everything is seen: the feed's first words come after the page's.
  const heard = isHeard(feed);
  // As the server counts it; where it cannot be asked, what the feed says.
  const told = outages.filter(({ source }) => source !== "engine");
  const counts: readonly Outage[] = counted.data?.unwatched.map(asOutage) ?? [];
  const away = counts.length > 0 ? counts : told.map(({ pool, since: at, atLeast }): Outage => ({ source: "rules", pool, since: at, atLeast }));
  return (
    <div className="space-y-6">
      <title>Alerts · Quartermaster</title>
      <div>
        <h1 className="text-lg font-semibold tracking-tight">Alerts</h1>
        <p className="text-sm text-soft">Open alerts, past alerts and the rules that raise them.</p>
      </div>
      <section aria-labelledby="open" className="space-y-2">
        <h2 id="open" className="text-sm font-semibold">
          Open now
        </h2>
        {away.length > 0 && <Unwatched away={away} />}
        {open.error ? <Failed error={open.error} retry={() => void open.refetch()} /> : !open.data || (away.length === 0 && counted.isPending) ? <Waiting /> : <Open alerts={open.data.results} blind={away.length > 0} partly={outages.length > 0 || !heard} />}
      </section>
      {user.role !== "member" && <Rules away={away} />}
      {user.role !== "member" && <Channels />}
      <History />
      <Notices />
    </div>
  );
}
