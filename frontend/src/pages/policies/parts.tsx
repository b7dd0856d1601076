import type { ReactNode } from "react";
import type { PolicyInfo } from "../../api/operate";
import { shown, type Change, type Texts } from "./params";

/** Before and after, line by line. */
export function Diff({ changes, empty }: { changes: readonly Change[]; empty: string }) {
  if (changes.length === 0) return <p className="text-sm text-soft">{empty}</p>;
  return (
    <table className="w-full text-sm" data-testid="diff">
      <thead className="sr-only">
        <tr>
          <th scope="col">What</th>
          <th scope="col">Before</th>
          <th scope="col">After</th>
        </tr>
      </thead>
      <tbody>
        {changes.map(({ name, before, after }) => (
          <tr key={name} className="border-t border-line align-top first:border-t-0">
            <th scope="row" className="py-1 pr-3 text-left font-normal text-soft">
              {name}
            </th>
            <td className="py-1 pr-3 break-all text-faint line-through">{shown(before)}</td>
            <td className="py-1 font-medium break-all text-ink">{shown(after)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** A field for each parameter; empty is the default. */
export function ParameterFields({ known, texts, errors, onChange, prefix }: { known: PolicyInfo["params"]; texts: Texts; errors: Texts; onChange: (texts: Texts) => void; prefix: string }) {
  if (known.length === 0) return <p className="text-sm text-faint">No parameters.</p>;
  return (
    <div className="grid grid-cols-1 gap-x-4 gap-y-3 sm:grid-cols-2">
      {known.map(({ name, type, default: initial }) => (
        <label key={name} className={`min-w-0 text-sm ${type === "str" ? "sm:col-span-2" : ""}`}>
          <span className="mb-1 flex items-baseline gap-1.5 font-medium">
            {name}
            <span className="ml-auto text-2xs font-normal text-faint">default {shown(initial)}</span>
          </span>
          <input
            name={`${prefix}${name}`}
            className="field w-full font-mono text-xs"
            value={texts[name] ?? ""}
            placeholder={shown(initial)}
            inputMode={type === "str" ? undefined : "decimal"}
            spellCheck={false}
            autoComplete="off"
            aria-invalid={errors[name] ? true : undefined}
            onChange={(event) => onChange({ ...texts, [name]: event.target.value })}
          />
          {errors[name] && <span className="text-2xs font-medium text-bad">{errors[name]}</span>}
        </label>
      ))}
    </div>
  );
}

export function Section({ title, children, actions }: { title: string; children: ReactNode; actions?: ReactNode }) {
  const id = title.toLowerCase().replaceAll(" ", "-");
  return (
    <section aria-labelledby={id} className="min-w-0 space-y-2">
      <div className="flex flex-wrap items-center gap-2">
        <h2 id={id} className="mr-auto text-sm font-semibold">
          {title}
        </h2>
        {actions}
      </div>
      {children}
    </section>
  );
}
