import { useState } from "react";
import type { Tried } from "../../api/operate";
import type { Entitlement, Tier, Backend } from "../../api/catalog";
import { Icon } from "../../components/icons";
import { useCatalog } from "../tenants/data";
import { withoutValue, withValue } from "./drafts";
import { shown } from "./params";

type Row = Record<string, unknown> & { slug: string };

/** What of a share, a tier or a replica can be tried (tenants/drafts.py). */
const TRIED: Record<Tried["kind"], readonly { field: string; label: string }[]> = {
  entitlement: [
    { field: "concurrency", label: "sequences at once" },
    { field: "tokens_per_s", label: "tokens per second" },
    { field: "burst_tokens", label: "burst [tokens]" },
    { field: "kv_tokens", label: "KV share [tokens]" },
  ],
  tier: [
    { field: "weight", label: "weight" },
    { field: "rank", label: "rank" },
    { field: "queue_limit", label: "queue limit" },
    { field: "max_wait_s", label: "longest wait [s]" },
  ],
  backend: [{ field: "slots", label: "slots" }],
};
const KINDS = [
  { value: "entitlement", label: "Share of a tenant" },
  { value: "tier", label: "Tier" },
  { value: "backend", label: "Backend" },
] as const;

/** Shares, tiers and slots that a draft changes beside the policy. */
export function Objects({ pool, objects, onChange }: { pool: string; objects: readonly Tried[]; onChange: (objects: Tried[]) => void }) {
  const entitlements = useCatalog<Entitlement>("entitlements", { pool });
  const tiers = useCatalog<Tier>("tiers");
  const backends = useCatalog<Backend>("backends", { pool });
  const [kind, setKind] = useState<string>("entitlement");
  const [name, setName] = useState("");
  const [field, setField] = useState("concurrency");
  const [value, setValue] = useState("");
  const mine = entitlements.data ?? [];
  const rows: Row[] = (kind === "entitlement" ? mine : kind === "backend" ? (backends.data ?? []) : (tiers.data ?? []).filter((tier) => mine.some((row) => row.tier === tier.slug))) as unknown as Row[];
  const row = rows.find((one) => one.slug === name);
  const n = Number(value);
  const fits = row !== undefined && value.trim() !== "" && Number.isFinite(n) && n >= 0 && n !== row[field];
  const add = () => {
    if (!row) return;
    onChange(withValue(objects, kind, name, field, row[field], n));
    setValue("");
  };
  return (
    <fieldset className="space-y-3">
      <legend className="text-sm font-semibold">Shares, tiers and slots</legend>
      {objects.length > 0 && (
        <ul className="space-y-1 text-sm">
          {objects.flatMap((one) =>
            Object.entries(one.values).map(([held, after]) => (
              <li key={`${one.kind} ${one.name} ${held}`} className="flex items-center gap-2 rounded-md bg-raised px-2 py-1">
                <span className="min-w-0 flex-1 break-all">
                  {one.kind} {one.name}: {held} <span className="text-faint line-through">{shown(one.was[held])}</span> <strong className="font-medium">{shown(after)}</strong>
                </span>
                <button type="button" className="button" aria-label={`Leave ${held} of ${one.name} as it is`} onClick={() => onChange(withoutValue(objects, one.kind, one.name, held))}>
                  <Icon name="close" />
                </button>
              </li>
            )),
          )}
        </ul>
      )}
      <div className="grid grid-cols-1 gap-2 sm:grid-cols-2">
        <select
          aria-label="Kind of object"
          className="field"
          value={kind}
          onChange={(event) => {
            setKind(event.target.value);
            setName("");
            setField(TRIED[event.target.value]![0]!.field);
          }}
        >
          {KINDS.map((one) => (
            <option key={one.value} value={one.value}>
              {one.label}
            </option>
          ))}
        </select>
        <select aria-label="Object" className="field" value={name} onChange={(event) => setName(event.target.value)}>
          <option value="">Choose one…</option>
          {rows.map((one) => (
            <option key={one.slug}>{one.slug}</option>
          ))}
        </select>
        <select aria-label="Value to try" className="field" value={field} onChange={(event) => setField(event.target.value)}>
          {TRIED[kind]!.map((one) => (
            <option key={one.field} value={one.field}>
              {one.label}
            </option>
          ))}
        </select>
        <span className="flex gap-2">
          <input aria-label="New value" className="field min-w-0 flex-1 font-mono text-xs" inputMode="decimal" value={value} placeholder={row ? `now ${shown(row[field])}` : ""} onChange={(event) => setValue(event.target.value)} />
          <button type="button" className="button h-9" disabled={!fits} onClick={add}>
            Add
          </button>
        </span>
      </div>
    </fieldset>
  );
}
