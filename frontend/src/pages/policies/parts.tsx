import { useId, type ReactNode } from "react";
import type { PolicyInfo } from "../../api/operate";
import { thresholds } from "./drafts";
import { limits, shown, type Change, type Parameter, type Texts } from "./params";

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

function ParameterField({ parameter, name, value, error, onChange }: { parameter: Parameter; name: string; value: string; error: string | undefined; onChange: (text: string) => void }) {
  const id = useId();
  const { type, unit, choices, default: initial } = parameter;
  const options = choices?.map(String);
  const shared = {
    id,
    name,
    value,
    className: "field w-full font-mono text-xs",
    "aria-invalid": error ? true : undefined,
    "aria-describedby": `${id}-help`,
    onChange: (event: { target: { value: string } }) => onChange(event.target.value),
  } as const;
  return (
    <div className={`min-w-0 text-sm ${type === "str" && !options ? "sm:col-span-2" : ""}`}>
      <div className="mb-1 flex items-baseline gap-1.5">
        <label htmlFor={id} className="min-w-0 font-medium">
          {parameter.name} {unit && <span className="text-2xs font-normal text-faint">{unit}</span>}
        </label>
        {!options && <span className="ml-auto shrink-0 text-2xs text-faint">default {shown(initial)}</span>}
      </div>
      {options ? (
        <select {...shared}>
          <option value="">default: {shown(initial)}</option>
          {value !== "" && !options.includes(value) && <option value={value}>{value}</option>}
          {options.map((option) => (
            <option key={option} value={option}>
              {option}
            </option>
          ))}
        </select>
      ) : (
        <input {...shared} placeholder={shown(initial)} inputMode={type === "str" ? undefined : "decimal"} spellCheck={false} autoComplete="off" />
      )}
      <div id={`${id}-help`} className="mt-1 space-y-0.5 text-2xs">
        {error && <p className="font-medium text-bad">{error}</p>}
        <p className="text-faint">
          {parameter.meaning} {!error && limits(parameter)}
        </p>
      </div>
    </div>
  );
}

/** A field for each parameter; empty is the default. */
export function ParameterFields({ known, texts, errors, onChange, prefix }: { known: PolicyInfo["params"]; texts: Texts; errors: Texts; onChange: (texts: Texts) => void; prefix: string }) {
  if (known.length === 0) return <p className="text-sm text-faint">No parameters.</p>;
  return (
    <div className="grid grid-cols-1 gap-x-4 gap-y-3 sm:grid-cols-2">
      {known.map((parameter) => (
        <ParameterField key={parameter.name} parameter={parameter} name={`${prefix}${parameter.name}`} value={texts[parameter.name] ?? ""} error={errors[parameter.name]} onChange={(text) => onChange({ ...texts, [parameter.name]: text })} />
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

/** How long a trial lasts and what ends it, before it starts. */
export function Plan({ minutes, interval, settings, onMinutes }: { minutes: string; interval: number; settings: Record<string, number> | undefined; onMinutes: (minutes: string) => void }) {
  return (
    <div className="space-y-2 text-sm text-soft" data-testid="plan">
      <label className="block">
        <span className="mb-1 block font-medium text-ink">For how many minutes</span>
        <input className="field w-32" inputMode="decimal" value={minutes} placeholder={String(interval)} onChange={(event) => onMinutes(event.target.value)} />
      </label>
      <p>It is active for the whole pool for that time, and kept at its end. It is rolled back at once if</p>
      <ul className="list-disc pl-5">
        {thresholds(settings ?? {}).map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ul>
    </div>
  );
}
