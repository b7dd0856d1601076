import { useMutation, useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { Link } from "react-router";
import { attempt, type IssuedKey } from "../../api/catalog";
import { ApiError, send } from "../../api/client";
import type { Tone } from "../../components/Badge";
import { Code, CopyButton } from "../../components/Copy";
import { NowBadge, UnknownNow, unknownSince } from "../../components/Outages";
import { Modal } from "../../components/Sheet";
import { useOutages } from "../../feed/live";
import { hides } from "../../feed/outages";
import { age, day, minute, utc, zone } from "../../lib/format";
import { ignoreHeldEnter } from "../../lib/heldEnter";
import { EffectsPanel } from "./EffectsPanel";

const stateTones: Record<string, Tone> = { bound: "good", degraded: "warn", pending: "warn", expired: "bad", active: "good", revoked: "bad" };

export function State({ state, reason }: { state: string; reason?: string }) {
  return (
    <NowBadge tone={stateTones[state]} title={reason}>
      {state}
    </NowBadge>
  );
}

export const none = <span className="text-faint">none</span>;

/** What a row is called, and its description below; a link where it has a page. */
export function Named({ row, to }: { row: { slug: string; description?: string }; to?: string }) {
  return (
    <>
      {to ? (
        <Link className="link" to={to}>
          {row.slug}
        </Link>
      ) : (
        <span className="block truncate" title={row.slug}>
          {row.slug}
        </span>
      )}
      {row.description && <span className="block truncate text-2xs font-normal text-faint">{row.description}</span>}
    </>
  );
}

/** A moment as people read it, with the whole of it at hand. */
export function When({ at, none = "never" }: { at: string | null | undefined; none?: string }) {
  if (!at) return <span className="text-faint">{none}</span>;
  const s = Date.parse(at) / 1000;
  return (
    <time dateTime={at} title={utc(Date.parse(at) / 1000)} className="whitespace-nowrap">
      {day(s)}, {minute(s)} <span className="text-faint">{zone(s)}</span>
    </time>
  );
}

export function Ago({ at, none = "never" }: { at: string | null | undefined; none?: string }) {
  if (!at) return <span className="text-faint">{none}</span>;
  const s = (Date.now() - Date.parse(at)) / 1000;
  return (
    <time dateTime={at} title={utc(Date.parse(at) / 1000)} className="whitespace-nowrap">
      {s < 5 ? "just now" : `${age(s)} ago`}
    </time>
  );
}

/** For how long something has lasted; the moment it began in its title. */
export function LastingFor({ since }: { since: string }) {
  const s = Math.max(1, (Date.now() - Date.parse(since)) / 1000);
  return (
    <time dateTime={since} title={utc(Date.parse(since) / 1000)} className="whitespace-nowrap">
      for {age(s)}
    </time>
  );
}

export function Failed({ error, retry }: { error: Error; retry?: () => void }) {
  return (
    <div role="alert" className="panel flex flex-wrap items-center gap-3 p-4 text-sm text-soft">
      <p className="flex-1">{error.message}</p>
      {retry && (
        <button type="button" className="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** In place of what a list has to say that is not here, or not whole: being read, or unknown. */
export function Unread({ list }: { list: { isPending: boolean; error: unknown } }) {
  return list.isPending && !list.error ? <span className="text-faint" data-unknown>…</span> : <UnknownNow />;
}

const NAMED = 3;

/** Beside sums over pools: those that are not in them, since when they cannot be seen, and those of whose busiest tenants alone figures were sent. */
export function Without({ pools, leftOut = [] }: { pools: readonly string[]; leftOut?: readonly string[] }) {
  const outages = useOutages();
  const named = (list: readonly string[]) => `${list.slice(0, NAMED).join(", ")}${list.length > NAMED ? ` and ${list.length - NAMED} more` : ""}`;
  return (
    <>
      {pools.length > 0 && (
        <span className="block text-2xs font-normal text-warn" data-unknown>
          Figures without pool {named(pools)}: {unknownSince(hides(outages, pools[0]))}
        </span>
      )}
      {leftOut.length > 0 && <span className="block text-2xs font-normal text-faint">Figures without pool {named(leftOut)}: not among its busiest tenants</span>}
    </>
  );
}

export const Waiting = () => <div className="skeleton h-48" role="status" aria-label="Loading" />;

/** What goes, what that does to others, and a button that says so. */
export function Delete({ path, name, what, own, onDone, onClose }: { path: string; name: string; what: string; own?: string; onDone: () => void; onClose: () => void }) {
  const trial = useQuery({ queryKey: ["trial", "DELETE", path], queryFn: ({ signal }) => attempt("DELETE", path, undefined, signal), retry: false, gcTime: 0 });
  const remove = useMutation({
    mutationFn: () =>
      send<void>("DELETE", path).catch((error: unknown) => {
        if (!(error instanceof ApiError && error.status === 404)) throw error; // another user was quicker: it is gone
      }),
    onSuccess: onDone,
  });
  const error = remove.error ?? trial.error;
  return (
    <Modal title={`Delete the ${what} ${name}?`} onClose={onClose} wide>
      <p className="mt-2 text-sm text-soft">This cannot be undone. Its records stay in the ledger and the audit log.</p>
      <div className="mt-3">{error ? <Failed error={error} /> : <EffectsPanel effects={trial.data} pending={trial.isFetching} own={own} />}</div>
      <div className="mt-4 flex justify-end gap-2">
        <button type="button" className="button h-9" data-autofocus onClick={onClose}>
          Cancel
        </button>
        <button type="button" className="button-danger" disabled={trial.isPending || trial.isError} aria-disabled={remove.isPending} onClick={() => !remove.isPending && remove.mutate()}>
          {remove.isPending ? "Deleting…" : "Delete"}
        </button>
      </div>
    </Modal>
  );
}

/**
 * A question with one action that posts; its error stays in the dialog. Enter in one of its fields runs it, and whoever
 * pressed it stays where they are: a button that is switched off meanwhile would lose the focus.
 */
export function Confirm({ title, action, danger, onRun, onClose, children }: { title: string; action: string; danger?: boolean; onRun: () => Promise<void>; onClose: () => void; children: ReactNode }) {
  const run = useMutation({ mutationFn: onRun });
  return (
    <Modal title={title} onClose={onClose}>
      <form
        onKeyDown={ignoreHeldEnter}
        onSubmit={(event) => {
          event.preventDefault();
          event.stopPropagation();
          if (!run.isPending) run.mutate();
        }}
      >
        <div className="mt-2 space-y-3 text-sm text-soft">{children}</div>
        {run.error && (
          <div className="mt-3">
            <Failed error={run.error} />
          </div>
        )}
        <div className="mt-4 flex justify-end gap-2">
          <button type="button" className="button h-9" data-autofocus onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className={danger ? "button-danger" : "button-primary"} aria-disabled={run.isPending}>
            {run.isPending ? "Working…" : action}
          </button>
        </div>
      </form>
    </Modal>
  );
}

export const curl = (key: string, model: string): string => `curl ${location.origin}/v1/chat/completions \\
  -H "Authorization: Bearer ${key}" \\
  -H "Content-Type: application/json" \\
  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello"}]}'`;

/** A key's secret, the only time it can be seen. */
export function Secret({ issued, model, onClose }: { issued: IssuedKey; model?: string; onClose: () => void }) {
  const [leaving, setLeaving] = useState(false);
  return (
    <Modal title={`Key "${issued.name}" is ready`} onClose={() => setLeaving(true)} wide>
      <p className="mt-2 text-sm text-soft">This is the only time its secret is shown. Only a hash of it is stored; copy it to where it is needed.</p>
      <div className="mt-3 flex flex-wrap items-center gap-2 rounded-md border border-edge bg-page p-2.5">
        <code className="min-w-0 flex-1 basis-64 font-mono text-xs break-all select-all" data-testid="secret">
          {issued.key}
        </code>
        <CopyButton text={issued.key} label="Copy key" />
      </div>
      {model && (
        <div className="mt-3">
          <p className="mb-1 text-sm text-soft">Its first request, from a shell:</p>
          <Code text={curl(issued.key, model)} label="First request with curl" />
        </div>
      )}
      {leaving && <p className="mt-3 rounded-md bg-warn-bg px-3 py-2 text-sm text-warn">Have you copied the key? It cannot be shown again.</p>}
      <div className="mt-4 flex flex-wrap justify-end gap-2">
        <button type="button" className="button h-9" onClick={onClose}>
          {leaving ? "Close" : "Done"}
        </button>
        <Link to="/playground" className="button-primary" data-autofocus>
          Try it in the playground
        </Link>
      </div>
    </Modal>
  );
}
