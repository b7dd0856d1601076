import { useState, type ReactNode } from "react";
import type { FieldSpec, Values } from "../../components/form/form";
import { ResourceForm } from "../../components/form/ResourceForm";
import { Icon } from "../../components/icons";
import { notify } from "../../components/Notices";
import { Sheet } from "../../components/Sheet";
import { Table, type Column } from "../../components/Table";
import { user } from "../../lib/page";
import { useAddress } from "../../lib/useAddress";
import { useHeld } from "../../lib/useHeld";
import { useCatalog, useRefresh } from "./data";
import { EffectsPanel } from "./EffectsPanel";
import { Delete, Failed, Waiting } from "./parts";

/** What is open beside a list, kept in the address: back closes it, and a link can open it. */
export function useSheet(what: string) {
  const [query, setQuery] = useAddress();
  const set = (changes: Record<string, string | null>) =>
    setQuery((old) => {
      for (const [name, value] of Object.entries(changes)) {
        if (value === null) old.delete(name);
        else old.set(name, value);
      }
      return old;
    });
  return {
    isNew: query.get("new") === what,
    edited: query.get("what") === what ? query.get("edit") : null,
    query,
    openNew: () => set({ new: what }),
    edit: (id: string) => set({ what, edit: id }),
    close: () => set({ new: null, what: null, edit: null, pool: null, url: null }),
  };
}

interface Props<T> {
  /** What one row is called: "tier". */
  what: string;
  title: string;
  intro: ReactNode;
  path: string;
  query?: Record<string, string>;
  columns: readonly Column<T>[];
  specs: (query: URLSearchParams) => readonly FieldSpec[];
  id: (row: T) => string;
  /** What people call a row, where that is not its id. */
  name?: (row: T) => string;
  /** Which rows are shown. */
  keep?: (row: T) => boolean;
  empty: ReactNode;
  extra?: (typed: Record<string, unknown>) => Record<string, unknown>;
  follow?: (values: Values, changed: string, written: ReadonlySet<string>) => Values;
  /** Whether a change can touch pools: then what it would do is shown before it is saved. */
  effects?: boolean;
  /** The entitlement that a write is about, for what the effects say. */
  own?: (row: T | undefined) => string | undefined;
  /** More buttons in a row. */
  actions?: (row: T) => ReactNode;
  fixed?: boolean;
  above?: ReactNode;
  aboveForm?: (row: T | undefined) => ReactNode;
  heading?: "h1" | "h2";
  /** Its button is not the page's primary one. */
  plain?: boolean;
  className?: string;
}

export const mayWrite = user.role === "admin";

/** A list of the catalog with its forms: read by those who see it, written by admins. */
export function Resource<T>(props: Props<T>) {
  const { what, title, intro, path, query = {}, columns, specs, id, empty, extra, follow, effects, own, actions, fixed, above, aboveForm, heading: Heading = "h1", plain, className, keep = () => true, name = id } = props;
  const { data, count, error, isPending, refetch } = useCatalog<T>(path, query);
  const refresh = useRefresh();
  const sheet = useSheet(what);
  const [leaving, setLeaving] = useState<T | null>(null);
  const row = useHeld(sheet.edited, data, id);
  const done = async (text: string) => {
    notify(text);
    sheet.close();
    await refresh();
  };
  const all: Column<T>[] = [...columns];
  if (mayWrite || actions)
    all.push({
      label: "",
      right: true,
      cell: (one) => (
        <span className="inline-flex justify-end gap-1.5">
          {actions?.(one)}
          {mayWrite && !fixed && (
            <button type="button" className="button h-7" onClick={() => sheet.edit(id(one))} aria-label={`Edit ${name(one)}`}>
              Edit
            </button>
          )}
          {mayWrite && (
            <button type="button" className="button h-7" onClick={() => setLeaving(one)} aria-label={`Delete ${name(one)}`}>
              Delete
            </button>
          )}
        </span>
      ),
    });
  return (
    <section aria-labelledby={`${what}-title`}>
      {Heading === "h1" && <title>{`${title} · Quartermaster`}</title>}
      <div className="mb-3 flex flex-wrap items-end justify-between gap-x-6 gap-y-2">
        <div className="min-w-0">
          <Heading id={`${what}-title`} className={Heading === "h1" ? "text-lg font-semibold tracking-tight" : "text-sm font-semibold"}>
            {title}
          </Heading>
          <p className="max-w-4xl text-sm text-soft">{intro}</p>
        </div>
        {mayWrite && (
          <button type="button" className={`${plain ? "button" : "button-primary"} gap-1.5`} onClick={sheet.openNew}>
            <Icon name="plus" />
            New {what}
          </button>
        )}
      </div>
      {above}
      {error ? <Failed error={error} retry={() => void refetch()} /> : isPending ? <Waiting /> : <Table label={title} rows={data.filter(keep)} of={data.length < count ? count : undefined} columns={all} id={id} empty={empty} className={className} />}
      {mayWrite && sheet.isNew && (
        <Sheet title={`New ${what}`} onClose={sheet.close}>
          <ResourceForm<T>
            specs={specs(sheet.query)}
            method="POST"
            path={path}
            submit={`Create ${what}`}
            extra={extra}
            follow={follow}
            effects={effects ? (found, pending) => <EffectsPanel effects={found} pending={pending} own={found?.changes.find((c) => c.kind === "entitlement" && c.action === "create")?.object} /> : undefined}
            onSaved={(saved) => void done(`${title}: ${name(saved)} was created.`)}
            onCancel={sheet.close}
          >
            {aboveForm?.(undefined)}
          </ResourceForm>
        </Sheet>
      )}
      {mayWrite && row !== undefined && (
        <Sheet title={`Change ${name(row)}`} onClose={sheet.close}>
          <ResourceForm<T>
            specs={specs(sheet.query)}
            row={row}
            method="PATCH"
            path={`${path}/${id(row)}`}
            submit="Save"
            follow={follow}
            effects={effects ? (found, pending) => <EffectsPanel effects={found} pending={pending} own={own?.(row)} /> : undefined}
            onSaved={() => void done(`${name(row)} was changed.`)}
            onCancel={sheet.close}
          >
            {aboveForm?.(row)}
          </ResourceForm>
        </Sheet>
      )}
      {leaving !== null && (
        <Delete
          path={`${path}/${id(leaving)}`}
          name={name(leaving)}
          what={what}
          own={own?.(leaving)}
          onClose={() => setLeaving(null)}
          onDone={() => {
            setLeaving(null);
            notify(`${name(leaving)} was deleted.`);
            void refresh();
          }}
        />
      )}
    </section>
  );
}
