/** Parameters of policies as forms and diffs show them. Pure. */

import type { Params, PolicyInfo, Tried, Version } from "../../api/operate";

export type Texts = Record<string, string>;

/** What the fields start with: only what differs from the defaults stands in them. */
export const textsOf = (params: Params): Texts => Object.fromEntries(Object.entries(params).map(([name, value]) => [name, String(value)]));

export type Parameter = PolicyInfo["params"][number];

/** Whether a value is one that the policy allows; of a text only the server knows. */
function allows({ minimum, maximum, exclusive_minimum, exclusive_maximum, choices }: Parameter, value: number | string): boolean {
  if (choices) return choices.includes(value);
  if (typeof value === "string") return true;
  const enough = minimum === null || (exclusive_minimum ? value > minimum : value >= minimum);
  return enough && (maximum === null || (exclusive_maximum ? value < maximum : value <= maximum));
}

/** Texts as parameters; empty ones take the default and are left out. */
export function typed(known: PolicyInfo["params"], texts: Texts): { values: Params; errors: Texts } {
  const values: Params = {};
  const errors: Texts = {};
  for (const parameter of known) {
    const { name, type, allowed } = parameter;
    const text = (texts[name] ?? "").trim();
    if (text === "") continue;
    const value = type === "str" ? text : Number(text);
    if (typeof value === "number" && !Number.isFinite(value)) errors[name] = "Use a number.";
    else if (type === "int" && !Number.isInteger(value)) errors[name] = "Use a whole number.";
    else if (!allows(parameter, value)) errors[name] = `Must be ${allowed}.`;
    else values[name] = value;
  }
  return { values, errors };
}

/** What a parameter may be, as a sentence after its meaning; a short one is not broken. Choices are in the field itself. */
export function limits({ allowed, choices }: Parameter): string {
  const sentence = `${allowed.charAt(0).toUpperCase()}${allowed.slice(1)}.`;
  return choices ? "" : sentence.length > 40 ? sentence : sentence.replaceAll(" ", "\u00a0");
}

export interface Change {
  name: string;
  before: unknown;
  after: unknown;
}

type Content = Pick<Version, "policy" | "policy_params" | "modifiers" | "routing" | "routing_params"> & { room?: Record<string, number | null> | null; objects?: readonly Tried[] };

/** How a version's room reads; null where it is automatic. */
const ROOM: Record<string, string> = { prefill_credit: "prefill credit", headroom_slots: "headroom" };
const roomOf = (room: Content["room"]): Params => Object.fromEntries(Object.entries(room ?? {}).map(([name, value]) => [ROOM[name] ?? name, value ?? "automatic"]));

/** A whole setting as one list of names and values. */
export const flat = (content: Content): Params => ({
  policy: content.policy,
  ...Object.fromEntries(Object.entries(content.policy_params).map(([name, value]) => [name, value])),
  ...Object.fromEntries(Object.entries(content.modifiers).map(([name, value]) => [`modifier ${name}`, Object.keys(value).length ? value : "on"])),
  routing: content.routing,
  ...Object.fromEntries(Object.entries(content.routing_params).map(([name, value]) => [`routing ${name}`, value])),
  ...roomOf(content.room),
  ...Object.fromEntries((content.objects ?? []).flatMap(({ kind, name, values }) => Object.entries(values).map(([field, value]) => [`${kind} ${name} ${field}`, value]))),
});

/** The changes of other objects as lines of a difference. */
export const triedChanges = (objects: readonly Tried[] | undefined): Change[] => (objects ?? []).flatMap(({ kind, name, values, was }) => Object.entries(values).map(([field, after]) => ({ name: `${kind} ${name} ${field}`, before: was[field], after })));

/** A simulated figure with the simulator's present error around it; undefined where that was never measured. */
export function within(value: number, error: number | undefined): [number, number] | undefined {
  return error === undefined ? undefined : [value / (1 + error), value * (1 + error)];
}

/** What would change from one version to the other; undefined where it is not there. */
export function difference(from: Content, to: Content): Change[] {
  // A version that an older release wrote says nothing of the room, and restoring it leaves that as it is.
  const both = !!from.room && !!to.room;
  const [before, after] = [flat({ ...from, room: both ? from.room : null }), flat({ ...to, room: both ? to.room : null })];
  return [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name])).map((name) => ({ name, before: before[name], after: after[name] }));
}

/** The version's own changes, with parameters of a field written as such. */
export const changesOf = (version: Pick<Version, "changes">): Change[] => Object.entries(version.changes).map(([name, [before, after]]) => ({ name: name.replace(/^policy_params[. ]/, "").replace(/^room\.(.*)$/, (_, field: string) => ROOM[field] ?? field), before, after }));

/** A value in a line: what is not there is the default. */
export function shown(value: unknown): string {
  if (value === undefined || value === null) return "default";
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  return typeof value === "string" ? value || "empty" : JSON.stringify(value);
}

export const inForce = (versions: readonly Version[]): Version | undefined => versions.find((version) => version.serving);

/** What an older version is gone back to with one click: the one that served before. */
export function previous(versions: readonly Version[]): Version | undefined {
  const now = inForce(versions);
  return now && versions.find((version) => version.number === now.parent && difference(now, version).length > 0);
}

/** Why simulated figures are compared with no live ones. `hidden`: since when what is in flight cannot be seen, where it cannot. */
export function uncompared(minutes: number, calibrated: boolean, hidden: string | undefined): string {
  if (hidden) return `Not compared: the pool's requests in flight are ${hidden}.`;
  if (!calibrated) return "Not compared: the engine model is not calibrated yet.";
  return `Too few requests in the last ${minutes} minutes to compare.`;
}
