import { useState } from "react";
import { Link } from "react-router";
import type { Tenant } from "../../api/catalog";
import { drainBackend, pauseTenant, resumeTenant } from "../../api/queue";
import { Badge } from "../../components/Badge";
import { notify } from "../../components/Notices";
import type { Snapshot } from "../../feed/types";
import { outOfService } from "../../lib/backend";
import { useCatalog } from "../tenants/data";
import { Confirm } from "./Confirm";

export type Asked = { kind: "pause" | "resume" | "drain" | "undrain"; name: string };

const questions: Record<Asked["kind"], { title: (name: string) => string; action: string; text: string }> = {
  pause: { title: (name) => `Pause ${name}?`, action: "Pause the tenant", text: "New requests of its keys are refused with tenant_paused, in every pool, until someone resumes it. Waiting and running requests continue." },
  resume: { title: (name) => `Resume ${name}?`, action: "Resume the tenant", text: "Its requests are admitted again at once." },
  drain: { title: (name) => `Drain ${name}?`, action: "Drain the backend", text: "It receives no new work; running requests finish." },
  undrain: { title: (name) => `Return ${name} to service?`, action: "Return it to service", text: "It receives work again once it has answered a probe." },
};

function run({ kind, name }: Asked, reason: string): Promise<unknown> {
  if (kind === "pause") return pauseTenant(name, reason);
  if (kind === "resume") return resumeTenant(name);
  return drainBackend(name, kind === "drain");
}

/** Asks before it is done, and does it. */
export function Question({ asked, onDone, onClose }: { asked: Asked; onDone: () => void; onClose: () => void }) {
  const question = questions[asked.kind];
  return (
    <Confirm
      title={question.title(asked.name)}
      action={question.action}
      reason={asked.kind === "pause"}
      run={(reason) => run(asked, reason)}
      onDone={() => {
        notify(`${asked.name}: done.`);
        onDone();
      }}
      onClose={onClose}
    >
      <p>{question.text}</p>
    </Confirm>
  );
}

/** What operators can do about a queue: each is asked about first and stands in the audit log. */
export function Actions({ snapshot }: { snapshot: Snapshot }) {
  const [asked, setAsked] = useState<Asked | null>(null);
  const [tenant, setTenant] = useState("");
  const [backend, setBackend] = useState("");
  const rows = Object.values(snapshot.entitlements ?? {});
  const partial = snapshot.left_out !== undefined;
  const all = useCatalog<Tenant>("tenants", {}, partial).data ?? [];
  const tenants = partial ? all.map((one) => one.slug) : [...new Set(rows.flatMap((row) => (row.tenant ? [row.tenant] : [])))].sort();
  const paused = new Set(partial ? all.flatMap((one) => (one.paused_since ? [one.slug] : [])) : rows.flatMap((row) => (row.paused && row.tenant ? [row.tenant] : [])));
  const backends = Object.entries(snapshot.backends ?? {}).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  const chosen = tenants.includes(tenant) ? tenant : (tenants[0] ?? "");
  const machine = backends.find(([name]) => name === backend) ?? backends[0];
  const drains = outOfService(machine?.[1].state);
  return (
    <section aria-labelledby="actions-title" className="panel flex flex-wrap items-end gap-x-6 gap-y-3 p-3">
      <h2 id="actions-title" className="sr-only">
        Operate
      </h2>
      {tenants.length > 0 && (
        <div className="flex items-end gap-2">
          <label className="flex flex-col gap-1">
            <span className="label">Tenant</span>
            <select className="field max-w-44" value={chosen} onChange={(event) => setTenant(event.target.value)}>
              {tenants.map((name) => (
                <option key={name} value={name}>
                  {name}
                  {paused.has(name) ? " (paused)" : ""}
                </option>
              ))}
            </select>
          </label>
          <button type="button" className="button" onClick={() => setAsked({ kind: paused.has(chosen) ? "resume" : "pause", name: chosen })}>
            {paused.has(chosen) ? "Resume" : "Pause"}
          </button>
        </div>
      )}
      {machine && (
        <div className="flex items-end gap-2">
          <label className="flex flex-col gap-1">
            <span className="label">Backend</span>
            <select className="field max-w-44" value={machine[0]} onChange={(event) => setBackend(event.target.value)}>
              {backends.map(([name, row]) => (
                <option key={name} value={name}>
                  {name}
                  {row.state === "ready" ? "" : ` (${row.state})`}
                </option>
              ))}
            </select>
          </label>
          <button type="button" className="button" onClick={() => setAsked({ kind: drains ? "undrain" : "drain", name: machine[0] })}>
            {drains ? "Return to service" : "Drain"}
          </button>
        </div>
      )}
      <Link className="button" to={`/policies?pool=${encodeURIComponent(snapshot.pool)}`}>
        Change the policy
      </Link>
      {paused.size > 0 && (
        <p className="flex items-center gap-1.5 text-sm text-soft">
          <Badge tone="warn">paused</Badge> {[...paused].sort().join(", ")}
        </p>
      )}
      {asked && <Question asked={asked} onDone={() => setAsked(null)} onClose={() => setAsked(null)} />}
    </section>
  );
}
