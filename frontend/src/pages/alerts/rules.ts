/** What alert rules look at, in words. Pure. */

import type { AlertRule } from "../../api/operate";
import { fieldsOf } from "../../components/form/fields";
import type { FieldSpec, Option, Values } from "../../components/form/form";
import { age, percent, text } from "../../lib/format";

/** The API's word for an alert that no rule opened: it is sent once, and nothing resolves it. */
export const ONE_TIME = "told";

export const stateLabel = (state: string) => (state === ONE_TIME ? "one-time" : state);

export const KINDS: Record<AlertRule["kind"], string> = {
  slo_attainment: "SLO attainment",
  queue_age: "Queue age",
  debt: "Debt",
  backend_health: "Backend health",
  quota: "Budget (quota)",
  ttft: "Time to first token",
  refusals: "Refusals",
  failures: "Failures",
  engine_queue: "Engine queue",
  kv_cache: "KV cache",
  gpu: "GPU utilization",
  no_leader: "No leader",
  cost: "Cost",
};

export type Kind = AlertRule["kind"];
export const kindLabel = (kind: string): string => KINDS[kind as Kind] ?? kind.replaceAll("_", " ");

/** Kinds whose threshold is a share, and those that have none. */
const SHARES: readonly string[] = ["slo_attainment", "quota", "refusals", "failures", "kv_cache", "gpu"] satisfies Kind[];
const WITHOUT: readonly string[] = ["backend_health", "no_leader"] satisfies Kind[];

/** A threshold with its unit. */
export const bound = (kind: string, value: number): string => {
  if (SHARES.includes(kind)) return text(percent(value));
  return kind === "queue_age" || kind === "ttft" ? `${value} s` : String(value);
};

const lasting = (s: number): string => (s ? ` for ${age(s)}` : "");

const whose = (rule: { tenant: string }, where: string): string => (rule.tenant ? `${rule.tenant}'s requests in ${where}` : `the requests of ${where}`);

/** A rule as a sentence: "SLO attainment of pool llama below 90.0 % for 2 min; over at 95.0 %". */
export function sentence(rule: Pick<AlertRule, "threshold" | "clear_threshold" | "for_s" | "pool" | "tenant"> & { kind: string }): string {
  const where = rule.pool ? `pool ${rule.pool}` : "each pool";
  const limit = rule.threshold === null ? "" : bound(rule.kind, rule.threshold);
  const over = rule.clear_threshold === null ? "" : `; clears at ${bound(rule.kind, rule.clear_threshold)}`;
  switch (rule.kind) {
    case "slo_attainment":
      return `Less than ${limit} of ${whose(rule, where)}, or of those of one ${rule.tenant ? "entitlement" : "tier"}, meet their SLO${lasting(rule.for_s)}${over}`;
    case "queue_age":
      return `The oldest request in the queue of ${where} waits longer than ${limit}${lasting(rule.for_s)}${over}`;
    case "debt":
      return `An entitlement${rule.tenant ? ` of ${rule.tenant}` : ""} in ${where} has debt above ${limit}${lasting(rule.for_s)}${over}`;
    case "backend_health":
      return `A backend of ${where} receives no work and is not draining${lasting(rule.for_s)}`;
    case "quota":
      return `${rule.tenant || "A tenant"} has used more than ${limit} of a quota${lasting(rule.for_s)}${over}`;
    case "ttft":
      return `5 % of ${whose(rule, where)} wait longer than ${limit} for their first token${lasting(rule.for_s)}${over}`;
    case "refusals":
      return `More than ${limit} of ${whose(rule, where)} are refused${lasting(rule.for_s)}${over}`;
    case "failures":
      return `More than ${limit} of ${whose(rule, where)} fail${lasting(rule.for_s)}${over}`;
    case "engine_queue":
      return `More than ${limit} requests wait inside an engine of ${where}${lasting(rule.for_s)}${over}`;
    case "kv_cache":
      return `A backend of ${where} uses more than ${limit} of its KV cache${lasting(rule.for_s)}${over}`;
    case "gpu":
      return `The GPUs of a backend of ${where} are more than ${limit} busy${lasting(rule.for_s)}${over}`;
    case "no_leader":
      return `${rule.pool ? `Pool ${rule.pool}` : "A pool"} has no leader${lasting(rule.for_s)}`;
    case "cost":
      return `${rule.tenant || "A tenant"} has cost more than ${limit} since midnight UTC${lasting(rule.for_s)}${over}`;
    default:
      return rule.kind;
  }
}

const number = (value: string | undefined): number | null => (value?.trim() && Number.isFinite(Number(value)) ? Number(value) : null);

const inWords = (_value: string, values: Values): string => {
  const threshold = number(values.threshold);
  if (!values.kind || (threshold === null && !WITHOUT.includes(values.kind))) return "";
  return `${sentence({ kind: values.kind, threshold, clear_threshold: number(values.clear_threshold), for_s: number(values.for_s) ?? 0, pool: values.pool ?? "", tenant: values.tenant ?? "" })}.`;
};

const optional = (names: readonly string[], none: string): Option[] => [{ value: "", label: none }, ...names.map((value) => ({ value, label: value }))];

const rule = fieldsOf("alert-rules");

export const ruleSpecs = (pools: readonly string[], tenants: readonly string[], channels: readonly string[] = []): FieldSpec[] => [
  rule("name", "Name", { wide: true }),
  rule("kind", "Metric", { initial: "slo_attainment", options: Object.entries(KINDS).map(([value, label]) => ({ value, label })) }),
  rule("severity", "Severity"),
  rule("threshold", "Threshold", { required: true, when: (values) => !WITHOUT.includes(values.kind ?? ""), explain: inWords }),
  rule("clear_threshold", "Clears at", { when: (values) => !WITHOUT.includes(values.kind ?? "") }),
  rule("for_s", "For"),
  rule("enabled", "Enabled"),
  rule("pool", "Pool", { kind: "choice", options: optional(pools, "every pool") }),
  rule("tenant", "Tenant", { kind: "choice", options: optional(tenants, "the pool as a whole, or each tenant") }),
  rule("channels", "Sent to", { wide: true, options: channels.map((value) => ({ value, label: value })) }),
  rule("webhook", "Webhook of this rule", { wide: true, placeholder: "https://…" }),
];

/** How long an alert lasted, or lasts by now [s]. */
export const lastedS = (at: string, until: string | null, nowMs: number): number => Math.max(0, ((until ? Date.parse(until) : nowMs) - Date.parse(at)) / 1000);

const channel = fieldsOf("notification-channels");
const TARGETS: Record<string, { label: string; placeholder: string; about: string }> = {
  slack: { label: "Incoming webhook", placeholder: "https://hooks.slack.com/services/…", about: "Its host must be listed in QUARTERMASTER_WEBHOOK_HOSTS." },
  webhook: { label: "Address", placeholder: "https://…", about: "Its host must be listed in QUARTERMASTER_WEBHOOK_HOSTS. Calls are signed." },
  email: { label: "Addresses", placeholder: "ops@example.org, oncall@example.org", about: "Up to ten, separated by commas. Needs QUARTERMASTER_EMAIL_URL." },
  pagerduty: { label: "Integration key", placeholder: "32 letters and digits", about: "The key of an Events API v2 integration." },
};

const targetOf = (kind: string): { label: string; placeholder: string; about: string } => TARGETS[kind] ?? { label: "Target", placeholder: "", about: "" };

/** `kind`: what is chosen now; the target is worded for it. `stored`: a target is kept already. */
export const channelSpecs = (kind: string, stored: boolean): FieldSpec[] => [
  channel("name", "Name", { wide: true, placeholder: "ops-slack" }),
  channel("kind", "Kind", { wide: true, initial: "slack" }),
  channel("target", targetOf(kind).label, { wide: true, required: !stored, placeholder: targetOf(kind).placeholder, explain: () => `${targetOf(kind).about}${stored ? " Leave it empty to keep the stored one." : ""}` }),
  channel("for_all", "Default channel"),
  channel("enabled", "Enabled"),
];
