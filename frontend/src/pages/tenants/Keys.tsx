import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { useState } from "react";
import type { Entitlement, IssuedKey, Key, Membership, Pool, Project } from "../../api/catalog";
import { get, send } from "../../api/client";
import { ResourceForm } from "../../components/form/ResourceForm";
import { Icon } from "../../components/icons";
import { notify } from "../../components/Notices";
import { Sheet } from "../../components/Sheet";
import { Table, type Column } from "../../components/Table";
import { hold } from "../../lib/keyring";
import { moment } from "../../lib/format";
import { user } from "../../lib/page";
import { useHeld } from "../../lib/useHeld";
import { useCatalog, useRefresh } from "./data";
import { Ago, Confirm, Failed, Secret, State, Waiting, When } from "./parts";
import { limitsOf } from "./limits";
import { useSheet } from "./Resource";
import { keySpecs, options } from "./specs";

const OVERLAPS = [
  { s: 0, label: "none: the old key stops working at once" },
  { s: 3600, label: "an hour" },
  { s: 86_400, label: "a day" },
  { s: 7 * 86_400, label: "a week" },
  { s: 30 * 86_400, label: "30 days" },
];

function Rotate({ secret, onDone, onClose }: { secret: Key; onDone: (issued: IssuedKey) => void; onClose: () => void }) {
  const [overlap, setOverlap] = useState(86_400);
  return (
    <Confirm title={`Rotate "${secret.name}"?`} action="Rotate" onClose={onClose} onRun={async () => onDone(await send<IssuedKey>("POST", `keys/${secret.id}/rotate`, { overlap_s: overlap }))}>
      <p>Creates a new key with the same name. Both keys work during the overlap, so clients can switch without interruption.</p>
      <label className="block">
        <span className="mb-1 block text-sm font-medium text-ink">Overlap</span>
        <select className="field w-full" value={overlap} onChange={(event) => setOverlap(Number(event.target.value))}>
          {OVERLAPS.map(({ s, label }) => (
            <option key={s} value={s}>
              {label}
            </option>
          ))}
        </select>
      </label>
      <p>{overlap > 0 ? `The old key ends ${moment(Date.now() / 1000 + overlap)}.` : "The old key ends at once: its requests that wait or run end with an error."}</p>
    </Confirm>
  );
}

/** A tenant's keys: made, rotated and revoked by admins and its members. */
export function Keys({ tenant }: { tenant: string }) {
  const { data, count, error, isPending, refetch } = useCatalog<Key>("keys", { tenant });
  const entitlements = useCatalog<Entitlement>("entitlements", { tenant }).data;
  const projects = useCatalog<Project>("projects", { tenant }).data;
  const own = useCatalog<Membership>("memberships", { tenant, user: user.name }, user.role === "operator").data ?? [];
  const pools = useCatalog<Pool>("pools").data ?? [];
  const used = useQuery({ queryKey: ["keys-used", tenant], queryFn: ({ signal }) => get<Record<string, string>>("keys/last-used", { tenant }, signal), refetchInterval: 15_000 }).data;
  const refresh = useRefresh();
  const sheet = useSheet("key");
  const [issued, setIssued] = useState<IssuedKey | null>(null);
  const [rotating, setRotating] = useState<Key | null>(null);
  const [revoking, setRevoking] = useState<Key | null>(null);
  const [allOfUser, setAllOfUser] = useState(false);
  const [all, setAll] = useState(false);
  const may = user.role === "admin" || user.role === "member" || own.length > 0;
  const modelOf = (entitlement: string | undefined): string | undefined => {
    const pool = entitlements?.find((e) => e.slug === entitlement)?.pool;
    return pools.find((p) => p.slug === pool)?.model;
  };
  const show = (key: IssuedKey) => {
    hold(key.key, `${key.name}, ${tenant}`);
    setIssued(key);
    void refresh();
  };
  const columns: Column<Key>[] = [
    {
      label: "Key",
      by: (row) => row.name,
      className: "max-w-60",
      cell: (row) => (
        <>
          <Link className="link block truncate" to={`/keys/${encodeURIComponent(row.id)}`}>{row.name}</Link>
          <span className="block font-mono text-2xs font-normal whitespace-nowrap text-faint">qm-{row.id}</span>
          <Link className="link text-2xs font-normal" to={`/requests?key_id=${row.id}`}>
            requests
          </Link>
        </>
      ),
    },
    { label: "State", by: (row) => row.status, cell: (row) => <State state={row.status} /> },
    {
      label: "Opens",
      by: (row) => row.opens.join(),
      className: "max-w-72",
      cell: (row) => (
        <>
          <span className="block truncate" title={row.opens.join(", ")}>
            {row.opens.join(", ") || <span className="text-faint">nothing yet</span>}
          </span>
          {row.project && <span className="block truncate text-2xs font-normal text-faint">project {row.project}</span>}
        </>
      ),
    },
    { label: "User", by: (row) => row.user, cell: (row) => row.user || <span className="text-faint">none</span> },
    {
      label: "Limits",
      className: "max-w-72",
      cell: (row) => (limitsOf(row).length ? limitsOf(row).map((line) => <span key={line} className="block">{line}</span>) : <span className="text-faint">none</span>),
    },
    { label: "Last used", by: (row) => used?.[row.id], cell: (row) => (used ? <Ago at={used[row.id]} /> : "…") },
    { label: "Created", by: (row) => row.created_at, cell: (row) => <span title={row.created_by ? `by ${row.created_by}` : undefined}><When at={row.created_at} /></span> },
    { label: "Expires", by: (row) => row.expires_at, cell: (row) => (row.revoked_at ? <span className="whitespace-nowrap">revoked <When at={row.revoked_at} /></span> : <When at={row.expires_at} />) },
  ];
  if (may)
    columns.push({
      label: "",
      right: true,
      cell: (row) =>
        row.status !== "active" ? null : (
          <span className="inline-flex gap-1.5">
            <button type="button" className="button h-7" onClick={() => sheet.edit(row.id)} aria-label={`Edit ${row.name}`}>
              Edit
            </button>
            <button type="button" className="button h-7" onClick={() => setRotating(row)} aria-label={`Rotate ${row.name}`}>
              Rotate
            </button>
            <button type="button" className="button h-7" onClick={() => {
                setAllOfUser(false);
                setRevoking(row);
              }} aria-label={`Revoke ${row.name}`}>
              Revoke
            </button>
          </span>
        ),
    });
  const rows = (data ?? []).filter((row) => all || row.status === "active");
  const choices = (entitlements ?? []).map((e) => ({ value: e.slug, label: `${e.slug}: ${e.pool}, ${e.tier}` }));
  const edited = useHeld(sheet.edited, data?.filter((row) => row.status !== "revoked"), (row) => row.id);
  const hidden = (data?.length ?? 0) - rows.length;
  return (
    <section aria-labelledby="keys-title">
      <div className="mb-3 flex flex-wrap items-end justify-between gap-x-6 gap-y-2">
        <div>
          <h2 id="keys-title" className="text-sm font-semibold">
            Keys
          </h2>
          <p className="text-sm text-soft">A key opens one entitlement, or those of its project: then the model chooses among them. The secret is shown once, when the key is created.</p>
        </div>
        <div className="flex items-center gap-3">
          {(hidden > 0 || all) && (
            <label className="flex items-center gap-1.5 text-sm text-soft">
              <input type="checkbox" className="size-4 accent-(--accent)" checked={all} onChange={(event) => setAll(event.target.checked)} />
              include ended keys
            </label>
          )}
          {may && (
            <button type="button" className="button-primary gap-1.5" onClick={sheet.openNew} disabled={entitlements?.length === 0}>
              <Icon name="plus" />
              New key
            </button>
          )}
        </div>
      </div>
      {error ? (
        <Failed error={error} retry={() => void refetch()} />
      ) : isPending || !entitlements || !projects ? (
        <Waiting />
      ) : (
        <Table label="Keys" rows={rows} of={data.length < count ? count : undefined} columns={columns} id={(row) => row.id} empty={entitlements.length === 0 ? "A key needs an entitlement; there is none yet." : hidden ? "No active keys." : "No key yet."} />
      )}
      {may && sheet.isNew && entitlements && projects && (
        <Sheet title="New key" subtitle={`For ${tenant}`} onClose={sheet.close}>
          <ResourceForm<IssuedKey>
            specs={keySpecs(choices, options(projects.map((p) => p.slug)), projects.length > 0 ? { project: projects[0]?.slug } : { entitlement: entitlements[0]?.slug })}
            method="POST"
            path="keys"
            submit="Create key"
            onCancel={sheet.close}
            onSaved={(key) => {
              sheet.close();
              show(key);
            }}
          />
        </Sheet>
      )}
      {may && edited && entitlements && projects && (
        <Sheet title={`Change ${edited.name}`} subtitle={`qm-${edited.id}`} onClose={sheet.close}>
          <ResourceForm<Key>
            specs={keySpecs(choices, options(projects.map((p) => p.slug)))}
            row={edited}
            method="PATCH"
            path={`keys/${edited.id}`}
            submit="Save"
            onCancel={sheet.close}
            onSaved={(key) => {
              sheet.close();
              notify(`${key.name} was changed.`);
              void refresh();
            }}
          />
        </Sheet>
      )}
      {rotating && (
        <Rotate
          secret={rotating}
          onClose={() => setRotating(null)}
          onDone={(key) => {
            setRotating(null);
            show(key);
          }}
        />
      )}
      {revoking && (
        <Confirm
          title={`Revoke "${revoking.name}"?`}
          action="Revoke"
          danger
          onClose={() => setRevoking(null)}
          onRun={async () => {
            if (allOfUser) await send("POST", `tenants/${tenant}/revoke-user`, { user: revoking.user });
            else await send("POST", `keys/${revoking.id}/revoke`);
            notify(allOfUser ? `All keys of ${revoking.user} were revoked.` : `${revoking.name} was revoked.`);
            setRevoking(null);
            void refresh();
          }}
        >
          <p>
            New requests with <span className="font-mono text-xs">qm-{revoking.id}</span> are refused within seconds, and those that wait or run end with an error. A revoked key cannot be restored.
          </p>
          {revoking.user && (
            <label className="flex items-center gap-1.5">
              <input type="checkbox" className="size-4 accent-(--accent)" checked={allOfUser} onChange={(event) => setAllOfUser(event.target.checked)} />
              all keys of {revoking.user}
            </label>
          )}
          <p>
            Last used: <Ago at={used?.[revoking.id]} />.
          </p>
        </Confirm>
      )}
      {issued && <Secret issued={issued} model={modelOf(issued.opens[0])} onClose={() => setIssued(null)} />}
    </section>
  );
}
