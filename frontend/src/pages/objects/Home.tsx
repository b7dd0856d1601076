import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import type { Entitlement, Key, Membership, Pool, Quota, SloRow, Tenant, Tier, Usage } from "../../api/catalog";
import { get } from "../../api/client";
import { explored } from "../../api/requests";
import { Badge } from "../../components/Badge";
import { Code, CopyButton } from "../../components/Copy";
import { since, UnknownNow } from "../../components/Outages";
import { Table, type Column } from "../../components/Table";
import { useNow, useOutages } from "../../feed/live";
import { cutsPast } from "../../feed/outages";
import { compact, money, percent, seconds, text } from "../../lib/format";
import { user } from "../../lib/page";
import { BudgetsLeft, useSpending } from "../tenants/Costs";
import { isWhole, useCatalog } from "../tenants/data";
import { Ago, curl, Failed, State, Unread, Waiting } from "../tenants/parts";
import { lacking, totalOf } from "../tenants/usage";
import { NO_FILTERS } from "./ObjectPage";
import { kept, requestsOf, spanOf } from "./past";

const enc = encodeURIComponent;

/** From midnight of the first, UTC, as quotas count months. */
export function monthOf(nowMs: number): { from: string; to: string } {
  const now = new Date(nowMs);
  return { from: new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), 1)).toISOString(), to: new Date(Math.ceil(nowMs / 60_000) * 60_000).toISOString() };
}

interface Promised {
  tier: string;
  ttft: number | null;
  ttlt: number | null;
  p95: number | null;
  whole: number | null;
  requests: number;
}

/** My latency in the last day against what my tiers promise. */
function Latency({ tenant }: { tenant: string }) {
  const now = useNow();
  const { from, to } = spanOf("24", now * 1000);
  const tiers = useCatalog<Tier>("tiers");
  const slos = useCatalog<SloRow>("slos");
  const unread = [tiers, slos].find((list) => !isWhole(list));
  const { data, error, refetch } = useQuery({ queryKey: ["requests", "home", tenant, to], queryFn: ({ signal }) => explored({ ...NO_FILTERS, tenant, outcome: "completed", from, to }, "tier", "ttft", signal), placeholderData: (old) => old, refetchInterval: 60_000 });
  if (error) return <Failed error={error} retry={() => void refetch()} />;
  if (!data) return <Waiting />;
  const rows = data.groups.map((group): Promised => {
    const slo = slos.data?.find((one) => one.slug === tiers.data?.find((tier) => tier.slug === group.name)?.slo);
    return { tier: group.name, ttft: slo?.ttft_s ?? null, ttlt: slo?.ttlt_s ?? null, p95: group.ttft_p95, whole: group.total_p95, requests: group.requests };
  });
  const columns: Column<Promised>[] = [
    { label: "Tier", by: (row) => row.tier, cell: (row) => row.tier },
    { label: "Answered", unit: "24 h", right: true, by: (row) => row.requests, cell: (row) => compact(row.requests) },
    { label: "First token", unit: "p95", right: true, by: (row) => row.p95, cell: (row) => text(seconds(row.p95 ?? undefined)) },
    { label: "Whole answer", unit: "p95", right: true, by: (row) => row.whole, cell: (row) => text(seconds(row.whole ?? undefined)) },
    {
      label: "SLO",
      right: true,
      cell: (row) => {
        const held = row.ttft !== null ? kept(row.p95, row.ttft) : kept(row.whole, row.ttlt);
        return (
          <>
            {row.ttft !== null ? `first token in ${text(seconds(row.ttft))}` : row.ttlt !== null ? `answer in ${text(seconds(row.ttlt))}` : unread ? <Unread list={unread} /> : "nothing"}
            {held !== undefined && (
              <span className="block">
                <Badge tone={held ? "plain" : "warn"}>{held ? "95 % within it" : "fewer than 95 % within it"}</Badge>
              </span>
            )}
          </>
        );
      },
    },
  ];
  return <Table label={`Latency of ${tenant}`} rows={rows} columns={columns} id={(row) => row.tier} empty="No request was answered in the last day." />;
}

/** What is left of a tenant's quotas and budgets, and what this month has cost. */
function Left({ tenant }: { tenant: string }) {
  const now = useNow();
  const month = monthOf(now * 1000);
  const today = month.to.slice(0, 10);
  const quotas = useCatalog<Quota>("quotas", { tenant });
  const used = useQuery({ queryKey: ["usage", "home", tenant, month.to], queryFn: ({ signal }) => get<Usage>("usage", { ...month, group_by: "day", tenant }, signal), placeholderData: (old) => old });
  const budgets = useSpending(tenant);
  const error = quotas.error ?? used.error ?? budgets.error;
  if (error) return <Failed error={error} retry={() => void Promise.all([quotas.refetch(), used.refetch(), budgets.refetch()])} />;
  if (!used.data || !quotas.data || !budgets.data) return <Waiting />;
  const tokens = (rows: Usage["rows"]) => rows.reduce((sum, row) => sum + row.input_tokens + row.output_tokens, 0);
  const total = totalOf(used.data.rows);
  const lacks = lacking(total.unknown);
  const ofPeriod: Partial<Record<string, number>> & { month: number } = { day: tokens(used.data.rows.filter((row) => String(row.day).startsWith(today))), month: tokens(used.data.rows) };
  return (
    <ul className="space-y-2 text-sm">
      <li>
        This month: {compact(total.requests)} requests, {compact(ofPeriod.month)} tokens, <strong className="font-medium">{total.cost === undefined ? "in several currencies" : total.cost.currency ? money(total.cost.sum, total.cost.currency) : "no price is set"}</strong>{" "}
        <Link className="link underline" to={`/tenants/${enc(tenant)}/usage`}>
          details
        </Link>
        {lacks && <span className="block text-xs text-warn">{lacks}</span>}
      </li>
      {quotas.data.map((quota) => {
        const most = quota.hard_tokens ?? quota.soft_tokens;
        const spent = ofPeriod[quota.period];
        if (most === null || spent === undefined) return null;
        const share = Math.min(1, spent / Math.max(1, most));
        return (
          <li key={quota.period}>
            <p className="flex justify-between gap-3">
              <span>
                Left this {quota.period} (UTC): <strong className="font-medium">{compact(Math.max(0, most - spent))}</strong> of {compact(most)} tokens
              </span>
              <span className="text-faint">{text(percent(share))} used</span>
            </p>
            <div className="mt-1 h-1.5 overflow-hidden rounded-full bg-raised">
              <div className={`h-full ${share >= 1 ? "bg-bad" : "bg-amber"}`} style={{ width: `${share * 100}%` }} />
            </div>
          </li>
        );
      })}
      {budgets.data.budgets.length > 0 && (
        <li>
          <BudgetsLeft tenant={tenant} />
        </li>
      )}
      {quotas.data.length + budgets.data.budgets.length === 0 && <li className="text-soft">No quota or budget limits its tokens; its shares limit what runs at once.</li>}
    </ul>
  );
}

function MyKeys({ tenant }: { tenant: string }) {
  const { data, error, refetch } = useCatalog<Key>("keys", { tenant });
  const used = useQuery({ queryKey: ["keys-used", tenant], queryFn: ({ signal }) => get<Record<string, string>>("keys/last-used", { tenant }, signal) });
  if (error) return <Failed error={error} retry={() => void refetch()} />;
  if (!data) return <Waiting />;
  const columns: Column<Key>[] = [
    { label: "Key", by: (row) => row.name, cell: (row) => <Link className="link" to={`/keys/${enc(row.id)}`}>{row.name}</Link> },
    { label: "State", by: (row) => row.status, cell: (row) => <State state={row.status} /> },
    { label: "Opens", cell: (row) => row.opens.join(", ") || "nothing" },
    { label: "Last used", cell: (row) => (used.error ? <UnknownNow /> : used.data ? <Ago at={used.data[row.id]} none="not in the ledger" /> : "…") },
  ];
  return (
    <>
      <Table label={`Keys of ${tenant}`} rows={data.filter((row) => row.status === "active")} columns={columns} id={(row) => row.id} empty="No key is active." />
      <p className="mt-2 text-sm">
        <Link className="link" to={`/tenants/${enc(tenant)}/keys`}>
          Make, rotate or revoke keys
        </Link>
      </p>
    </>
  );
}

function Connect({ tenant }: { tenant: string }) {
  const pools = useCatalog<Pool>("pools").data;
  const shares = useCatalog<Entitlement>("entitlements", { tenant }).data;
  if (!pools || !shares) return <Waiting />;
  const models = [...new Set(shares.flatMap((share) => pools.filter((pool) => pool.slug === share.pool).map((pool) => pool.model)))];
  if (models.length === 0) return <p className="text-sm text-soft">It has no share of a pool yet, so no model answers its keys. Ask an operator for one.</p>;
  const base = `${location.origin}/v1`;
  return (
    <div className="space-y-2 text-sm">
      <p className="flex flex-wrap items-center gap-2">
        Base URL <code className="font-mono text-xs break-all">{base}</code> <CopyButton text={base} label="Copy base URL" />
      </p>
      <p>
        Models:{" "}
        {models.map((model, i) => (
          <span key={model}>
            {i > 0 && ", "}
            <Link className="link break-all" to={`/models/${enc(model)}`}>
              {model}
            </Link>
          </span>
        ))}
      </p>
      <Code label="Call it with curl" text={curl("YOUR_KEY", models[0]!)} />
      <p>
        <Link className="link" to="/playground">
          Try it in the playground
        </Link>
      </p>
    </div>
  );
}

/** A member's own page: keys, what is left, what it cost, latency against the SLO, how to connect. */
export function Home() {
  const staff = user.role !== "member";
  const visible = useCatalog<Tenant>("tenants", {}, !staff); // a member sees their own
  const memberships = useCatalog<Membership>("memberships", { user: user.name }, staff);
  const asked = staff ? memberships : visible;
  const missing = cutsPast(useOutages());
  if (asked.error) return <Failed error={asked.error} retry={() => void asked.refetch()} />;
  if (asked.isPending) return <Waiting />;
  const tenants = staff ? [...new Set((memberships.data ?? []).flatMap((row) => (row.tenant ? [row.tenant] : [])))] : (visible.data ?? []).map((row) => row.slug);
  return (
    <>
      <title>My access · Quartermaster</title>
      <div className="mb-4">
        <h1 className="text-lg font-semibold tracking-tight">My access</h1>
        <p className="text-sm text-soft">
          {tenants.length === 0 ? "Your keys, what is left of the quotas and budgets, what this month cost, and your latency against the SLO." : `You act for ${tenants.join(", ")}.`}
          {missing && ` Requests that ended ${since(missing)} are not included yet.`}
        </p>
      </div>
      {tenants.length === 0 && (
        <div className="panel p-6 text-sm text-soft">
          <p>
            <strong className="font-semibold text-ink">You are not a member of any tenant.</strong> {staff ? "As an operator or admin you see every tenant; this page is for members, about their own." : "Ask an admin to make you a member of one."}
          </p>
          {staff && (
            <p className="mt-3 flex flex-wrap gap-2">
              <Link className="button" to="/tenants">
                All tenants
              </Link>
              <Link className="button" to="/roles">
                Roles
              </Link>
            </p>
          )}
        </div>
      )}
      <div className="space-y-6">
        {tenants.map((tenant) => (
          <section key={tenant} aria-label={tenant} className="grid gap-4 lg:grid-cols-2">
            <div className="panel min-w-0 p-4">
              <h2 className="mb-2 text-sm font-semibold">Keys of {tenant}</h2>
              <MyKeys tenant={tenant} />
            </div>
            <div className="panel min-w-0 p-4">
              <h2 className="mb-2 text-sm font-semibold">Left, and what it cost</h2>
              <Left tenant={tenant} />
            </div>
            <div className="panel min-w-0 p-4">
              <h2 className="mb-2 flex flex-wrap items-center gap-3 text-sm font-semibold">
                Latency against the SLO
                <Link className="link font-normal" to={requestsOf({ tenant })}>
                  its requests
                </Link>
              </h2>
              <Latency tenant={tenant} />
            </div>
            <div className="panel min-w-0 p-4">
              <h2 className="mb-2 text-sm font-semibold">How to connect</h2>
              <Connect tenant={tenant} />
            </div>
          </section>
        ))}
      </div>
    </>
  );
}
