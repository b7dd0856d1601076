import { useState } from "react";
import { Link, useNavigate, useParams } from "react-router";
import type { Entitlement, Tenant } from "../../api/catalog";
import { send } from "../../api/client";
import { Badge } from "../../components/Badge";
import { Owned } from "../../components/form/Owned";
import { ResourceForm } from "../../components/form/ResourceForm";
import { notify } from "../../components/Notices";
import { Sheet } from "../../components/Sheet";
import { compact, count, percent, text } from "../../lib/format";
import { user } from "../../lib/page";
import { useCurrentInView } from "../../lib/useCurrentInView";
import { useCatalog, useRefresh, useSnapshotsOf } from "./data";
import { Past } from "../objects/ObjectPage";
import { isLow, judgedOf } from "../overview/verdict";
import { AuditPanel } from "./Audit";
import { Batches } from "./Batches";
import { Entitlements } from "./Entitlements";
import { Keys } from "./Keys";
import { attainment, unseen, useByTenant } from "./live";
import { Members } from "./Members";
import { Ago, Confirm, Delete, Failed, Waiting, Without } from "./parts";
import { Projects } from "./Projects";
import { Budgets } from "./Budgets";
import { Quotas } from "./Quotas";
import { NeighboursPanel } from "./Neighbours";
import { mayWrite, useSheet } from "./Resource";
import { tenantSpecs } from "./specs";
import { UsagePanel } from "./Usage";

const tabs = [
  { id: "entitlements", label: "Entitlements", panel: Entitlements },
  { id: "projects", label: "Projects", panel: Projects },
  { id: "keys", label: "Keys", panel: Keys },
  { id: "batches", label: "Batches", panel: Batches },
  { id: "members", label: "Members", panel: Members },
  { id: "quotas", label: "Quotas", panel: Quotas },
  { id: "budgets", label: "Budgets", panel: Budgets },
  ...(user.role === "member" ? [] : [{ id: "neighbours", label: "Neighbours", panel: NeighboursPanel }]),
  { id: "usage", label: "Usage", panel: ({ tenant }: { tenant: string }) => <UsagePanel tenant={tenant} /> },
  { id: "past", label: "Past", panel: ({ tenant }: { tenant: string }) => <Past filters={{ tenant }} events={{ pool: "", subject: tenant }} /> },
  { id: "audit", label: "Audit", panel: ({ tenant }: { tenant: string }) => <AuditPanel query={{ tenant }} /> },
];

function Fact({ label, value, note, bad }: { label: string; value: string; note?: string; bad?: boolean }) {
  return (
    <div className="min-w-0">
      <dt className="label">{label}</dt>
      <dd className={`text-lg leading-6 font-semibold tracking-tight ${bad ? "text-bad" : ""}`}>
        {value}
        {note && <span className="ml-1 text-xs font-normal text-faint">{note}</span>}
      </dd>
    </div>
  );
}

/** What the tenant does now, over all pools. */
function Now({ tenant }: { tenant: string }) {
  const snapshots = useSnapshotsOf(tenant);
  const use = useByTenant(snapshots).get(tenant);
  const entitlements = useCatalog<Entitlement>("entitlements", { tenant }).data ?? [];
  const missing = use ? unseen(entitlements.map((e) => e.pool), snapshots) : [];
  return (
    <section className="panel mb-4 px-4 py-3" aria-label="Now">
      <dl className="grid grid-cols-2 gap-x-6 gap-y-2 sm:grid-cols-3 lg:grid-cols-5">
        <Fact label="Running" value={count(use?.running)} note={use?.limit ? `of ${use.limit}` : undefined} />
        <Fact label="Waiting" value={count(use?.waiting)} />
        <Fact label="Tokens" value={use ? compact(use.tokensPerS) : "–"} note={use ? "per s" : undefined} />
        <Fact label="Refused, 1 min" value={count(use?.refused)} />
        <Fact label="Attainment, 1 min" value={text(percent(attainment(use)))} bad={isLow(attainment(use))} note={use && judgedOf(use)} />
      </dl>
      <Without pools={missing} />
    </section>
  );
}

/** Stops a tenant's new requests for a while, or lets them in again. */
function Pause({ tenant, onDone, onClose }: { tenant: Tenant; onDone: (text: string) => void; onClose: () => void }) {
  const [reason, setReason] = useState("");
  const paused = tenant.paused_since !== null;
  return (
    <Confirm
      title={paused ? `Resume ${tenant.slug}?` : `Pause ${tenant.slug}?`}
      action={paused ? "Resume" : "Pause"}
      danger={!paused}
      onClose={onClose}
      onRun={async () => {
        await send("POST", `tenants/${tenant.slug}/${paused ? "resume" : "pause"}`, paused ? undefined : { reason });
        onDone(paused ? `${tenant.slug} is resumed.` : `${tenant.slug} is paused.`);
      }}
    >
      {paused ? (
        <p>New requests of its keys are admitted again.</p>
      ) : (
        <>
          <p>New requests of all its keys are refused until it is resumed. Admitted requests continue.</p>
          <label className="block">
            <span className="mb-1 block text-sm font-medium text-ink">Reason, for the audit log</span>
            <input className="field w-full" maxLength={200} value={reason} onChange={(event) => setReason(event.target.value)} />
          </label>
        </>
      )}
    </Confirm>
  );
}

/** The row of a tenant's pages. */
function Tabs({ slug, tab }: { slug: string; tab: string }) {
  const list = useCurrentInView<HTMLElement>(tab);
  return (
    <nav ref={list} aria-label={`Pages of ${slug}`} className="relative -mx-4 mb-4 flex print:hidden [scrollbar-width:none] gap-1 overflow-x-auto px-4 sm:mx-0 sm:px-0">
      {tabs.map(({ id, label }) => (
        <Link
          key={id}
          to={id === "entitlements" ? `/tenants/${slug}` : `/tenants/${slug}/${id}`}
          aria-current={id === tab ? "page" : undefined}
          className="inline-flex h-8 shrink-0 items-center rounded-md px-2.5 text-sm text-soft hover:text-ink aria-[current=page]:bg-raised aria-[current=page]:font-medium aria-[current=page]:text-ink"
        >
          {label}
        </Link>
      ))}
    </nav>
  );
}

/** One tenant: what it may, who acts for it, what it uses. */
export function TenantPage() {
  const { tenant: slug = "", tab = "entitlements" } = useParams();
  const { data, error, isPending, refetch } = useCatalog<Tenant>("tenants", { search: slug });
  const navigate = useNavigate();
  const refresh = useRefresh();
  const sheet = useSheet("this tenant");
  const [leaving, setLeaving] = useState(false);
  const [pausing, setPausing] = useState(false);
  const tenant = data?.find((one) => one.slug === slug);
  const Panel = (tabs.find((one) => one.id === tab) ?? tabs[0]!).panel;
  if (error) return <Failed error={error} retry={() => void refetch()} />;
  if (isPending) return <Waiting />;
  if (!tenant)
    return (
      <div className="panel mx-auto my-12 max-w-xl p-8 text-sm text-soft">
        <title>No such tenant · Quartermaster</title>
        <h1 className="text-base font-semibold text-ink">There is no tenant {slug}</h1>
        <p className="mt-2">
          It may have been deleted, or you may not see it. See <Link className="link" to="/tenants">all tenants</Link>.
        </p>
      </div>
    );
  return (
    <>
      <title>{`${slug} · Quartermaster`}</title>
      <div className="mb-3 flex flex-wrap items-start justify-between gap-x-6 gap-y-2">
        <div className="min-w-0">
          <h1 className="text-lg font-semibold tracking-tight">
            <Link to="/tenants" className="font-normal text-faint hover:text-ink">
              Tenants /
            </Link>{" "}
            {slug}
            {tenant.paused_since && (
              <span className="ml-2 align-middle">
                <Badge tone="warn">paused</Badge>
              </span>
            )}
          </h1>
          {tenant.paused_since && (
            <p className="text-sm text-warn">
              Paused <Ago at={tenant.paused_since} />
              {tenant.paused_reason && `: ${tenant.paused_reason}`}
            </p>
          )}
          <p className="text-sm text-soft">{tenant.description || <span className="text-faint">no description</span>}</p>
        </div>
        <div className="flex flex-wrap gap-2">
          <Link to={`/requests?tenant=${slug}`} className="button">
            Its requests
          </Link>
          {user.role !== "member" && (
            <button type="button" className="button" onClick={() => setPausing(true)}>
              {tenant.paused_since ? "Resume" : "Pause"}
            </button>
          )}
          {mayWrite && (
            <>
              <button type="button" className="button" onClick={() => sheet.edit(slug)}>
                Edit
              </button>
              <button type="button" className="button" onClick={() => setLeaving(true)}>
                Delete
              </button>
            </>
          )}
        </div>
      </div>
      <Owned path={`tenants/${slug}`} />
      <Now tenant={slug} />
      <Tabs slug={slug} tab={tab} />
      <Panel key={slug} tenant={slug} />
      {mayWrite && sheet.edited === slug && (
        <Sheet title={`Change ${slug}`} onClose={sheet.close}>
          <ResourceForm<Tenant>
            specs={tenantSpecs}
            row={tenant}
            method="PATCH"
            path={`tenants/${slug}`}
            submit="Save"
            onCancel={sheet.close}
            onSaved={() => {
              notify(`${slug} was changed.`);
              sheet.close();
              void refresh();
            }}
          />
        </Sheet>
      )}
      {pausing && (
        <Pause
          tenant={tenant}
          onClose={() => setPausing(false)}
          onDone={(said) => {
            notify(said);
            setPausing(false);
            void refresh();
          }}
        />
      )}
      {leaving && (
        <Delete
          path={`tenants/${slug}`}
          name={slug}
          what="tenant"
          onClose={() => setLeaving(false)}
          onDone={() => {
            notify(`${slug} was deleted.`);
            void refresh();
            void navigate("/tenants");
          }}
        />
      )}
    </>
  );
}
