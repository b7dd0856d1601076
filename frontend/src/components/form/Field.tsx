import { useId } from "react";
import { zone } from "../../lib/format";
import { choicesOf, type FieldSpec, type Values } from "./form";

interface Props {
  spec: FieldSpec;
  value: string;
  values: Values;
  error: string | undefined;
  disabled?: boolean;
  onChange: (value: string) => void;
  onBlur: () => void;
}

/** One field with its unit, what it means, what it comes to, and what is wrong with it. */
export function Field({ spec, value, values, error, disabled, onChange, onBlur }: Props) {
  const id = useId();
  const unit = spec.kind === "moment" ? zone() : spec.unit;
  const explained = error ? "" : (spec.explain?.(value, values) ?? "");
  const shared = {
    id,
    name: spec.name,
    value,
    disabled,
    onBlur,
    "aria-invalid": error ? true : undefined,
    "aria-required": spec.required || undefined,
    "aria-describedby": `${id}-help`,
    className: "field w-full",
  } as const;
  const type = (event: { target: { value: string } }) => onChange(event.target.value);
  const hints = (
    <div id={`${id}-help`} className="mt-1 space-y-0.5 text-2xs">
      {error && (
        <p className="font-medium text-bad" data-error={spec.name}>
          {error}
        </p>
      )}
      {explained && <p className="text-soft">{explained}</p>}
      {spec.help && <p className="text-faint">{spec.help}</p>}
    </div>
  );
  if (spec.kind === "flag")
    return (
      <div className={spec.wide ? "sm:col-span-2" : ""}>
        <label htmlFor={id} className="flex items-center gap-2 text-sm font-medium">
          <input {...shared} type="checkbox" className="size-4 accent-(--accent)" value="true" checked={value === "true"} onChange={(event) => onChange(event.target.checked ? "true" : "")} />
          {spec.label}
        </label>
        {hints}
      </div>
    );
  if (spec.kind === "words" && spec.options) {
    const chosen = value.split(/[\s,]+/).filter(Boolean);
    return (
      <fieldset className={`min-w-0 ${spec.wide ? "sm:col-span-2" : ""}`} aria-describedby={`${id}-help`}>
        <legend className="mb-1 text-sm font-medium">{spec.label}</legend>
        <div className="flex flex-wrap gap-x-4 gap-y-1.5">
          {spec.options.map((option) => (
            <label key={option.value} className="flex items-center gap-2 text-sm">
              <input
                type="checkbox"
                className="size-4 accent-(--accent)"
                name={spec.name}
                disabled={disabled}
                checked={chosen.includes(option.value)}
                onChange={(event) => onChange((event.target.checked ? [...chosen, option.value] : chosen.filter((name) => name !== option.value)).join(", "))}
              />
              {option.label}
            </label>
          ))}
        </div>
        {hints}
      </fieldset>
    );
  }
  return (
    <div className={`min-w-0 ${spec.wide ? "sm:col-span-2" : ""}`}>
      <label htmlFor={id} className="mb-1 flex items-baseline gap-1.5 text-sm font-medium">
        {spec.label}
        {unit && <span className="text-2xs font-normal text-faint">{unit}</span>}
        {!spec.required && !spec.options?.some((option) => option.value === "") && <span className="ml-auto text-2xs font-normal text-faint">optional</span>}
      </label>
      {spec.kind === "choice" ? (
        <select {...shared} onChange={type}>
          {choicesOf(spec, value).map((option) => (
            <option key={option.value} value={option.value} disabled={spec.required && option.value === ""}>
              {option.label}
            </option>
          ))}
        </select>
      ) : spec.kind === "json" ? (
        <textarea {...shared} rows={2} spellCheck={false} placeholder={spec.placeholder} className="field w-full font-mono text-xs" onChange={type} />
      ) : (
        <input
          {...shared}
          type={spec.kind === "moment" ? "datetime-local" : spec.kind === "secret" ? "password" : "text"}
          inputMode={spec.kind === "integer" ? "numeric" : spec.kind === "number" ? "decimal" : undefined}
          autoComplete={spec.kind === "secret" ? "new-password" : "off"}
          spellCheck={spec.kind === "text" && spec.wide ? undefined : false}
          placeholder={spec.placeholder}
          onChange={type}
        />
      )}
      {hints}
    </div>
  );
}
