import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import type { AuditEntry, List } from "../../api/catalog";
import { get } from "../../api/client";
import { instant } from "../../components/form/form";
import { Badge, type Tone } from "../../components/Badge";
import { useDebounced } from "../../lib/useDebounced";
import { counted, words } from "../../lib/format";
import { Failed, Waiting, When } from "./parts";

const PAGE = 50;
const tones: Record<string, Tone> = { create: "good", issue: "good", delete: "bad", revoke: "bad", state: "warn", health: "warn", drain: "warn", retire: "warn" };

const kinds: Record<string, string> = { apikey: "API key", accesstoken: "access token", slo: "SLO", grouprule: "group rule" };
const kindName = (kind: string): string => kinds[kind] ?? words(kind);

const said = (value: unknown): string => (value === null || value === undefined || value === "" ? "nothing" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** Field by field, what it was and what it became. */
function Changes({ entry }: { entry: AuditEntry }) {
  const names = Object.keys(entry.after ?? entry.before ?? {}).filter((name) => entry.before === null || entry.after === null || entry.before[name] !== entry.after[name]);
  if (names.length === 0) return null;
  const both = entry.before !== null && entry.after !== null;
  const list = (
    <ul className="space-y-0.5 text-xs">
      {names.map((name) => (
        <li key={name} className="break-words">
          <span className="text-faint">{words(name)}</span>{" "}
          {both ? (
            <>
              <span className="text-soft line-through decoration-faint">{said(entry.before![name])}</span> → <span className="font-medium">{said(entry.after![name])}</span>
            </>
          ) : (
            said((entry.after ?? entry.before)![name])
          )}
        </li>
      ))}
    </ul>
  );
  if (both) return list;
  return (
    <details className="text-xs">
      <summary className="text-soft hover:text-ink">{counted(names.length, "field")}</summary>
      {list}
    </details>
  );
}

/** What a field for a moment holds, as the API takes it. */
/** All changes, newest first. */
export function AuditPanel({ query = {} }: { query?: Record<string, string> }) {
  const [kind, setKind] = useState("");
  const [search, setSearch] = useState("");
  const [outcome, setOutcome] = useState("");
  const [via, setVia] = useState("");
  const [since, setSince] = useState("");
  const [until, setUntil] = useState("");
  const asked = { ...query, kind, outcome, via, since: instant(since) ?? "", until: instant(until) ?? "", search: useDebounced(search.trim(), 300) };
  const file = (as: string) => `/api/v1/audit/export?${new URLSearchParams(Object.entries({ ...asked, as }).filter(([, value]) => value !== ""))}`;
  const { data, error, isPending, hasNextPage, isFetchingNextPage, fetchNextPage, refetch } = useInfiniteQuery({
    queryKey: ["catalog", "audit", asked],
    queryFn: ({ pageParam, signal }) => get<List<AuditEntry>>("audit", { ...asked, limit: String(PAGE), offset: String(pageParam) }, signal),
    initialPageParam: 0,
    getNextPageParam: (page, pages) => (page.next ? pages.length * PAGE : undefined),
  });
  const entries = data?.pages.flatMap((page) => page.results) ?? [];
  return (
    <section aria-label="Audit">
      <div className="mb-3 flex flex-wrap gap-2">
        <input type="search" aria-label="Who or what" placeholder="Who or what" className="field w-44" value={search} onChange={(event) => setSearch(event.target.value)} />
        <select aria-label="Kind" className="field" value={kind} onChange={(event) => setKind(event.target.value)}>
          <option value="">All kinds</option>
          {["tenant", "entitlement", "apikey", "pool", "backend", "tier", "slo", "quota", "budget", "price", "membership", "accesstoken", "user", "grouprule", "invitation", "request"].map((name) => (
            <option key={name} value={name}>
              {kindName(name)}
            </option>
          ))}
        </select>
        <select aria-label="Outcome" className="field" value={outcome} onChange={(event) => setOutcome(event.target.value)}>
          <option value="">All outcomes</option>
          {["done", "refused", "read"].map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <select aria-label="Through" className="field" value={via} onChange={(event) => setVia(event.target.value)}>
          <option value="">All sources</option>
          {["api", "admin", "cli", "login", "oidc", "invitation", "kubernetes", "system"].map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <label className="flex items-center gap-1.5 text-sm text-soft">
          Since
          <input type="datetime-local" className="field" value={since} onChange={(event) => setSince(event.target.value)} />
        </label>
        <label className="flex items-center gap-1.5 text-sm text-soft">
          Until
          <input type="datetime-local" className="field" value={until} onChange={(event) => setUntil(event.target.value)} />
        </label>
        <a className="button" href={file("csv")} download>
          CSV
        </a>
        <a className="button" href={file("jsonl")} download>
          JSON
        </a>
      </div>
      {error ? (
        <Failed error={error} retry={() => void refetch()} />
      ) : isPending ? (
        <Waiting />
      ) : entries.length === 0 ? (
        <p className="panel p-6 text-center text-sm text-soft">No changes.</p>
      ) : (
        <ol className="panel divide-y divide-line" aria-label="Changes">
          {entries.map((entry) => (
            <li key={entry.id} className="grid grid-cols-[minmax(0,1fr)] gap-x-4 gap-y-1 px-4 py-2.5 text-sm md:grid-cols-[9rem_minmax(0,1fr)_minmax(0,1.4fr)]">
              <span className="text-xs text-faint">
                <When at={entry.at} />
              </span>
              <span className="min-w-0">
                <span className="font-medium">{entry.actor}</span> <Badge tone={entry.after?.state === "bound" ? "good" : tones[entry.action]}>{entry.action}</Badge> {entry.outcome === "refused" && <Badge tone="warn">refused</Badge>} <span className="text-faint">{kindName(entry.kind)}</span>{" "}
                <span className="break-words">{entry.object}</span>
                <span className="block text-2xs text-faint">
                  through {entry.via}
                  {entry.address && `, from ${entry.address}`}
                  {entry.tenant && !query.tenant ? `, tenant ${entry.tenant}` : ""}
                </span>
              </span>
              <Changes entry={entry} />
            </li>
          ))}
        </ol>
      )}
      {hasNextPage && (
        <div className="mt-3 text-center">
          <button type="button" className="button" disabled={isFetchingNextPage} onClick={() => void fetchNextPage()}>
            {isFetchingNextPage ? "Loading…" : "Load older changes"}
          </button>
        </div>
      )}
    </section>
  );
}

export function AuditPage() {
  return (
    <>
      <title>Audit · Quartermaster</title>
      <h1 className="text-lg font-semibold tracking-tight">Audit</h1>
      <p className="mb-3 text-sm text-soft">Changes, refused attempts, logins and exports, newest first. Each entry is linked to the one before it, so an edit or a missing entry is found by manage.py audit verify. Entries contain no secrets.</p>
      <AuditPanel />
    </>
  );
}
