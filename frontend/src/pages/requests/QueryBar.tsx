import { useEffect, useId, useRef, useState } from "react";
import type { Filters } from "../../api/requests";
import type { Known } from "./Explore";
import { completions, parse, TERMS, written } from "./query";

const PAUSE_MS = 500; // in typing, after which what can be read is asked for
const EXAMPLE = "waited:>8s tenant:acme at:08:40..08:55";

/** One line that asks for requests. Enter asks; the address holds what was asked. */
export function QueryBar({ filters, known, onChange }: { filters: Filters; known: Known; onChange: (changes: Record<string, string>) => void }) {
  const asked = written(filters);
  const [draft, setDraft] = useState(asked);
  const [faults, setFaults] = useState<string[]>([]);
  const list = useId();
  // What was typed stays as it is while it means what the address has.
  useEffect(() => setDraft((typed) => (written({ ...parse(typed, new Date()).filters }) === asked ? typed : asked)), [asked]);
  const ask = (text: string) => {
    const parsed = parse(text, new Date());
    setFaults(parsed.faults);
    if (parsed.faults.length === 0) onChange(Object.fromEntries(Object.keys(filters).map((name) => [name, parsed.filters[name as keyof Filters] ?? ""])));
  };
  // The address may have changed since it was typed (a row was opened): the latest one is added to.
  const latest = useRef(ask);
  latest.current = ask;
  // biome-ignore lint/correctness/useExhaustiveDependencies: only typing asks; what comes from the address was asked
  useEffect(() => {
    if (written(parse(draft, new Date()).filters) === asked) return;
    const timer = setTimeout(() => {
      if (parse(draft, new Date()).faults.length === 0) latest.current(draft);
    }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [draft]);
  return (
    <form
      className="mt-4 mb-3"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        ask(draft);
      }}
    >
      <label className="flex flex-col gap-1">
        <span className="label">Query, or request id (x-request-id)</span>
        <span className="flex gap-2">
          <input type="search" className="field min-w-0 flex-1 font-mono" list={list} value={draft} placeholder={EXAMPLE} spellCheck={false} autoComplete="off" aria-invalid={faults.length > 0} onChange={(event) => setDraft(event.target.value)} />
          <button type="submit" className="button">
            Search
          </button>
          {asked && (
            <button type="button" className="button" onClick={() => ask("")}>
              Clear
            </button>
          )}
        </span>
      </label>
      <datalist id={list}>
        {completions(draft, known).map((value) => (
          <option key={value} value={value} />
        ))}
      </datalist>
      {faults.length > 0 ? (
        <ul role="alert" className="mt-1 text-sm text-bad">
          {faults.map((fault) => (
            <li key={fault}>{fault}</li>
          ))}
        </ul>
      ) : (
        <p className="mt-1 text-2xs text-faint">Terms: {Object.keys(TERMS).join(", ")}. A bare word is the beginning of an x-request-id.</p>
      )}
    </form>
  );
}
