import { useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState, type ReactNode } from "react";
import { attempt, type Effects } from "../../api/catalog";
import { ApiError, get, send, type Method } from "../../api/client";
import { useDebounced } from "../../lib/useDebounced";
import { Icon } from "../icons";
import { useLeaveGuard } from "./Discard";
import { Field } from "./Field";
import { Owned } from "./Owned";
import { useOwner } from "./owners";
import { applies, body, changedByOthers, changedMeanwhile, check, isDirty, noted, place, start, type Errors, type FieldSpec, type Values } from "./form";

const SETTLED_MS = 350;

interface Props<T> {
  specs: readonly FieldSpec[];
  /** The row that is changed; nothing for a new one. */
  row?: unknown;
  method: Method;
  path: string;
  submit: string;
  /** What follows from a value that was typed, such as a name that is proposed until someone writes another. */
  follow?: (values: Values, changed: string, written: ReadonlySet<string>) => Values;
  /** What the change would do, while it is typed. Left out: the server is not asked before saving. */
  effects?: (found: Effects | undefined, pending: boolean) => ReactNode;
  /** Beside the fields: what the whole of it would mean. Nothing is handed over while something is wrong. */
  meaning?: (whole: Record<string, unknown> | undefined) => ReactNode;
  onSaved: (saved: T) => void;
  onCancel?: () => void;
  /** More for the body, such as the tenant whose page this is. */
  extra?: (typed: Record<string, unknown>) => Record<string, unknown>;
  children?: ReactNode;
  footer?: ReactNode;
}

/** The row as it is now; nothing where it cannot be read, which the write will say better. */
const current = async (path: string): Promise<unknown> => {
  try {
    return await get<unknown>(path);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) throw error;
    return undefined;
  }
};

/** A form over fields: checked while it is typed, tried before it is saved, and never lost. */
export function ResourceForm<T>({ specs, row, method, path, submit, follow, effects, meaning, onSaved, onCancel, extra, children, footer }: Props<T>) {
  // What was there when the form was opened: a row that changes meanwhile does not change what was typed over.
  const [before, setBefore] = useState<Values>(() => start(specs, row));
  const [values, setValues] = useState<Values>(before);
  const [touched, setTouched] = useState<ReadonlySet<string>>(new Set()); // whose faults are shown; a refused form's all
  const [written, setWritten] = useState<ReadonlySet<string>>(new Set()); // by hand: what `follow` leaves alone
  const [server, setServer] = useState<{ fields: Errors; general: string }>({ fields: {}, general: "" });
  const form = useRef<HTMLFormElement>(null);
  const isNew = row === undefined;
  const owner = useOwner(isNew ? "" : path);
  const wrong = check(specs, values);
  const dirty = isDirty(values, before);
  const typed = body(specs, values, isNew ? undefined : before);
  const complete = Object.keys(wrong).length === 0;
  const sent = extra ? extra(typed) : typed;

  const settled = useDebounced(sent, SETTLED_MS);
  const trial = useQuery({
    queryKey: ["trial", method, path, settled],
    queryFn: ({ signal }) => attempt(method, path, settled, signal),
    enabled: effects !== undefined && complete && (isNew || dirty),
    retry: false,
    gcTime: 0,
    staleTime: 0,
    placeholderData: (old) => old,
  });
  const tried = complete && trial.error instanceof ApiError && trial.error.status === 400 ? place(specs, trial.error.fields) : undefined;

  /** What somebody else saved since the form was opened is replaced by whoever has seen it only. */
  const compare = async () => {
    const held = await current(path);
    if (held === undefined) return;
    const now = start(specs, held);
    const others = changedByOthers(specs, values, before, now);
    if (others.length === 0) return;
    const was = before;
    setBefore({ ...before, ...Object.fromEntries(others.map((spec) => [spec.name, now[spec.name] ?? ""])) });
    throw new ApiError(409, "", Object.fromEntries(others.map((spec) => [spec.name, [changedMeanwhile(spec, was, now)]])));
  };
  const save = useMutation({
    mutationFn: async () => {
      if (method === "PATCH" && !isNew) await compare();
      return send<T>(method, path, sent);
    },
    onSuccess: (saved) => {
      saving.current = true;
      onSaved(saved);
    },
    onError: (error) => {
      const placed = error instanceof ApiError ? place(specs, error.fields) : { fields: {}, general: "" };
      const gone = !isNew && error instanceof ApiError && error.status === 404;
      const told = gone ? "This was deleted meanwhile, so it cannot be changed. Copy what you need, then cancel." : error.message;
      setServer({ fields: placed.fields, general: placed.general || (Object.keys(placed.fields).length ? "" : told) });
      setTouched(new Set(specs.map((spec) => spec.name)));
      setFailures((n) => n + 1);
    },
  });
  const saving = useRef(false);

  // Whoever pressed Enter in vain is taken to the first thing that is wrong, once it is on the screen.
  const [failures, setFailures] = useState(0);
  useEffect(() => {
    if (failures === 0) return;
    const field = form.current?.querySelector<HTMLElement>("[aria-invalid=true]");
    field?.closest("details")?.setAttribute("open", "");
    (field ?? form.current?.querySelector<HTMLElement>("[role=alert]"))?.focus();
  }, [failures]);

  const leaving = useLeaveGuard(() => dirty && !save.isPending && !saving.current);

  // Who opens a form in a dialog wants to type.
  useEffect(() => {
    if (!form.current?.closest("dialog")) return;
    const fields = form.current.querySelectorAll<HTMLElement>("input:not([disabled]), select:not([disabled])");
    [...fields].find((field) => field.checkVisibility())?.focus(); // not one in a part that is folded
  }, []);

  const errorOf = (spec: FieldSpec): string | undefined => (touched.has(spec.name) ? (wrong[spec.name] ?? server.fields[spec.name] ?? tried?.fields[spec.name]) : undefined);
  const change = (spec: FieldSpec, value: string) => {
    setTouched((old) => new Set(old).add(spec.name));
    const byHand = noted(written, spec.name, value);
    setWritten(byHand);
    setValues((old) => {
      const next = { ...old, [spec.name]: value };
      return follow ? follow(next, spec.name, byHand) : next;
    });
    setServer((old) => ({ general: "", fields: Object.fromEntries(Object.entries(old.fields).filter(([name]) => name !== spec.name)) }));
  };
  const line = (spec: FieldSpec) => (
    <Field
      key={spec.name}
      spec={spec.kind === "secret" && !isNew ? { ...spec, placeholder: "no change if left empty" } : spec}
      value={values[spec.name] ?? ""}
      values={values}
      error={errorOf(spec)}
      disabled={(spec.fixed && !isNew) || owner?.fields_set.includes(spec.name)}
      onChange={(value) => change(spec, value)}
      // A field that was left empty is not wrong before anything was typed: opening and leaving a form is no mistake.
      onBlur={() => values[spec.name] !== before[spec.name] && setTouched((old) => new Set(old).add(spec.name))}
    />
  );
  const groups = [...new Set(specs.flatMap((spec) => spec.group ?? []))];
  const general = server.general || tried?.general;

  return (
    <form
      ref={form}
      noValidate
      className="flex min-h-0 flex-1 flex-col"
      onSubmit={(event) => {
        event.preventDefault();
        event.stopPropagation();
        if (save.isPending) return;
        setTouched(new Set(specs.map((spec) => spec.name)));
        if (!complete) return setFailures((n) => n + 1);
        if (!isNew && !dirty) return onCancel?.();
        save.mutate();
      }}
    >
      <div className="min-h-0 flex-1 space-y-5 overflow-y-auto px-5 py-4">
        {!isNew && <Owned path={path} />}
        {children}
        <div className="grid grid-cols-1 gap-x-4 gap-y-3.5 sm:grid-cols-2">{specs.filter((spec) => !spec.group && applies(spec, values)).map(line)}</div>
        {groups.map((group) => (
          <details key={group} className="group border-t border-line pt-3">
            <summary className="flex list-none items-center gap-1.5 text-sm font-medium text-soft hover:text-ink [&::-webkit-details-marker]:hidden">
              <span className="transition-transform group-open:rotate-180">
                <Icon name="down" />
              </span>
              {group}
            </summary>
            <div className="mt-3 grid grid-cols-1 gap-x-4 gap-y-3.5 sm:grid-cols-2">{specs.filter((spec) => spec.group === group && applies(spec, values)).map(line)}</div>
          </details>
        ))}
        {meaning?.(complete ? body(specs, values) : undefined)}
        {effects && (isNew || dirty) && effects(complete && !trial.error ? trial.data : undefined, complete && (trial.isFetching || JSON.stringify(settled) !== JSON.stringify(sent)) && !trial.error)}
      </div>
      <div className="border-t border-line px-5 py-3">
        {general && (
          <p role="alert" tabIndex={-1} className="mb-3 flex gap-2 rounded-md bg-bad-bg px-3 py-2 text-sm text-bad outline-none">
            <span className="mt-0.5 shrink-0">
              <Icon name="alert" />
            </span>
            {general}
          </p>
        )}
        <div className="flex flex-wrap items-center justify-end gap-2">
          {footer && <div className="mr-auto">{footer}</div>}
          {onCancel && (
            <button type="button" className="button h-9" onClick={onCancel}>
              Cancel
            </button>
          )}
          <button type="submit" className="button-primary" disabled={save.isPending}>
            {save.isPending ? "Saving…" : submit}
          </button>
        </div>
      </div>
      {leaving}
    </form>
  );
}
