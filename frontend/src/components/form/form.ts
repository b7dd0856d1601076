/** What a form knows, without React: fields, what is typed in them, and what the server is sent. */

import type { FieldErrors } from "../../api/client";
import { zoneChoice } from "../../lib/zone";

export interface Option {
  value: string;
  label: string;
}

export interface FieldSpec {
  /** Where the value goes in the body; dots nest: "tenant.slug". */
  name: string;
  label: string;
  kind: "text" | "slug" | "integer" | "number" | "choice" | "moment" | "flag" | "secret" | "words" | "json";
  unit?: string;
  /** One or two sentences: what it means, and what empty means. */
  help?: string;
  required?: boolean;
  min?: number;
  max?: number;
  maxLength?: number;
  /** What a new row starts with, as text. */
  initial?: string;
  options?: readonly Option[];
  /** Cannot change once it was made. */
  fixed?: boolean;
  placeholder?: string;
  /** Under this heading, folded away. */
  group?: string;
  /** Takes the whole width. */
  wide?: boolean;
  /** Whether the field applies to what is typed elsewhere; one that does not is neither shown nor checked. */
  when?: (values: Values) => boolean;
  /** What the figure comes to, in words. */
  explain?: (value: string, values: Values) => string;
}

/** Texts as typed; flags are "true" or "". */
export type Values = Record<string, string>;
export type Errors = Record<string, string>;

/** What a choice offers: "none" where it may be left empty, "choose" until a required one is made, and a value that is not listed any more. */
export function choicesOf(spec: FieldSpec, value: string): Option[] {
  const listed = spec.options ?? [];
  const has = (wanted: string) => listed.some((option) => option.value === wanted);
  return [
    ...(!spec.required && !has("") ? [{ value: "", label: "none" }] : []),
    ...(spec.required && value === "" && !has("") ? [{ value: "", label: "choose" }] : []),
    ...(value !== "" && !has(value) ? [{ value, label: value }] : []),
    ...listed,
  ];
}

const SLUG = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;

type Parsed = { value: unknown } | { error: string };

const bounds = (spec: FieldSpec, n: number): string => {
  if (spec.min !== undefined && n < spec.min) return `Use ${spec.min.toLocaleString("en")} or more.`;
  if (spec.max !== undefined && n > spec.max) return `Use ${spec.max.toLocaleString("en")} or less.`;
  return "";
};

/** "12,000" and "12 000" are what people copy from elsewhere. */
const plain = (text: string): string => text.replace(/(?<=\d)[,\s_](?=\d{3}(\D|$))/g, "").trim();

/** A field's text as the server wants it, or what is wrong with it. */
export function parse(spec: FieldSpec, text: string): Parsed {
  const typed = spec.kind === "secret" ? text : text.trim();
  if (spec.kind === "flag") return { value: typed === "true" };
  if (typed === "") {
    if (spec.required) return { error: spec.kind === "choice" ? "Choose one." : "This field is required." };
    if (spec.kind === "words") return { value: [] };
    if (spec.kind === "json") return { value: {} };
    return { value: spec.kind === "text" || spec.kind === "secret" ? "" : null };
  }
  switch (spec.kind) {
    case "slug":
      if (SLUG.test(typed)) return { value: typed };
      return { error: /[A-Z]/.test(typed) ? "Use lower-case letters." : "Use up to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends." };
    case "integer":
    case "number": {
      const n = Number(plain(typed));
      if (!Number.isFinite(n)) return { error: "Use a number, such as 12 or 0.5." };
      if (spec.kind === "integer" && !Number.isInteger(n)) return { error: "Use a whole number." };
      const wrong = bounds(spec, n);
      return wrong ? { error: wrong } : { value: n };
    }
    case "moment": {
      const at = instant(typed);
      return at === undefined ? { error: "Use a date and time." } : { value: at };
    }
    case "words":
      return { value: typed.split(/[\s,]+/).filter(Boolean) };
    case "json":
      try {
        const value: unknown = JSON.parse(typed);
        if (value === null || typeof value !== "object") return { error: 'Write an object, such as {"alpha": 0.5}.' };
        return { value };
      } catch {
        return { error: 'This is not JSON. Write it like {"alpha": 0.5}.' };
      }
    default:
      if (spec.maxLength !== undefined && typed.length > spec.maxLength) return { error: `Use ${spec.maxLength} characters at most.` };
      return { value: typed };
  }
}

/** A row's value as a form shows it. */
export function show(spec: FieldSpec, value: unknown): string {
  if (value === null || value === undefined) return "";
  if (spec.kind === "flag") return value === true ? "true" : "";
  if (spec.kind === "words") return Array.isArray(value) ? value.join(", ") : "";
  if (spec.kind === "json") return Object.keys(value as object).length ? JSON.stringify(value, null, 1).replaceAll("\n", " ") : "";
  if (spec.kind === "moment") return local(new Date(String(value)));
  return String(value);
}

/** What somebody typed there, as the server takes it; undefined: no moment. */
export function instant(typed: string): string | undefined {
  const at = new Date(zoneChoice === "utc" && typed && !/[zZ]$/.test(typed) ? `${typed}Z` : typed);
  return Number.isNaN(at.getTime()) ? undefined : at.toISOString();
}

/** As <input type="datetime-local"> wants it: in the zone of the console, no seconds. */
export function local(at: Date): string {
  if (zoneChoice === "utc") return at.toISOString().slice(0, 16);
  const shifted = new Date(at.getTime() - at.getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 16);
}

const reach = (row: unknown, path: string): unknown => path.split(".").reduce<unknown>((at, step) => (at as Record<string, unknown> | undefined)?.[step], row);

/** What a form starts with: the row's values, or what a new one begins with. */
export const start = (specs: readonly FieldSpec[], row?: unknown): Values =>
  Object.fromEntries(specs.map((spec) => [spec.name, row === undefined ? (spec.initial ?? "") : show(spec, reach(row, spec.name))]));

export const applies = (spec: FieldSpec, values: Values): boolean => spec.when?.(values) ?? true;

export function check(specs: readonly FieldSpec[], values: Values): Errors {
  const errors: Errors = {};
  for (const spec of specs) {
    if (!applies(spec, values)) continue;
    const parsed = parse(spec, values[spec.name] ?? "");
    if ("error" in parsed) errors[spec.name] = parsed.error;
  }
  return errors;
}

/** The body of a write: everything for a new row, else what differs from `before`. Secrets left empty stay as they are. */
export function body(specs: readonly FieldSpec[], values: Values, before?: Values): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const spec of specs) {
    const text = values[spec.name] ?? "";
    if (before && (spec.fixed || text === before[spec.name])) continue;
    if (!before && !applies(spec, values)) continue;
    if (!before && text.trim() === "" && !spec.required && spec.kind !== "flag") continue; // the server's default
    const parsed = parse(spec, text);
    if ("error" in parsed) continue;
    const path = spec.name.split(".");
    let at = out;
    for (const step of path.slice(0, -1)) at = (at[step] ??= {}) as Record<string, unknown>;
    at[path.at(-1)!] = parsed.value;
  }
  return out;
}

/** The server's errors on the fields they belong to; the rest is about the whole. */
export function place(specs: readonly FieldSpec[], found: FieldErrors): { fields: Errors; general: string } {
  const fields: Errors = {};
  const general: string[] = [];
  for (const [path, texts] of Object.entries(found)) {
    if (specs.some((spec) => spec.name === path)) fields[path] = texts.join(" ");
    else if (path === "" || path.endsWith("non_field_errors")) general.push(...texts);
    else general.push(...texts.map((text) => `${path}: ${text}`));
  }
  return { fields, general: general.join(" ") };
}

export const isDirty = (values: Values, before: Values): boolean => Object.keys(values).some((name) => values[name] !== (before[name] ?? ""));

/** The fields about to be saved that somebody else has changed since, to something else. */
export const changedByOthers = (specs: readonly FieldSpec[], values: Values, before: Values, now: Values): FieldSpec[] =>
  specs.filter((spec) => !spec.fixed && spec.kind !== "secret" && values[spec.name] !== before[spec.name] && now[spec.name] !== before[spec.name] && now[spec.name] !== values[spec.name]);

const SHOWN = 60;
const quoted = (text: string | undefined): string => (!text ? "empty" : `“${text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text}”`);

export const changedMeanwhile = (spec: FieldSpec, before: Values, now: Values): string =>
  spec.kind === "flag"
    ? `Another user turned this ${now[spec.name] ? "on" : "off"} meanwhile. Save again to replace that.`
    : `Another user changed this from ${quoted(before[spec.name])} to ${quoted(now[spec.name])} meanwhile. Save again to replace that.`;

/** A name out of a sentence: "Acme Corp." -> "acme-corp". */
export const slugOf = (text: string): string =>
  text
    .normalize("NFKD")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 63)
    .replace(/-+$/, "");

/** The fields that somebody wrote by hand, after one more change. One that was emptied again waits for a proposal. */
export function noted(written: ReadonlySet<string>, name: string, value: string): ReadonlySet<string> {
  const next = new Set(written);
  if (value === "") next.delete(name);
  else next.add(name);
  return next;
}
