/** the catalog's forms: their order and wording. What a field is, and may hold, is the API's (`api/generated.ts`). */

import { fieldsOf } from "../../components/form/fields";
import { slugOf, type FieldSpec, type Option, type Values } from "../../components/form/form";
import { compact, duration, text } from "../../lib/format";

const figure = (value: string): number | undefined => {
  const n = Number(value.replaceAll(",", ""));
  return value.trim() === "" || !Number.isFinite(n) ? undefined : n;
};

const seconds = (value: string): string => {
  const n = figure(value);
  return n === undefined || n <= 0 ? "" : n < 1 ? `${Math.round(n * 1000)} ms` : n < 60 ? "" : text(duration(n * 1000));
};

export const options = (names: readonly string[]): Option[] => names.map((value) => ({ value, label: value }));

const tenant = fieldsOf("tenants");
const slo = fieldsOf("slos");
const tier = fieldsOf("tiers");
const pool = fieldsOf("pools");
const backend = fieldsOf("backends");
const adapter = fieldsOf("adapters");
const entitlement = fieldsOf("entitlements");
const project = fieldsOf("projects");
const quota = fieldsOf("quotas");
const budget = fieldsOf("budgets");
const price = fieldsOf("prices");
const key = fieldsOf("keys");
const member = fieldsOf("memberships");
const group = fieldsOf("group-rules");
const invitation = fieldsOf("invitations");
const token = fieldsOf("tokens");

export const tenantSpecs: FieldSpec[] = [tenant("slug", "Name", { wide: true }), tenant("description", "Description", { wide: true })];

const rate = entitlement("tokens_per_s", "Token budget", {
  explain: (value) => {
    const n = figure(value);
    return n ? `${compact(n * 3600)} tokens an hour, ${compact(n * 86_400)} a day` : "";
  },
});

const burst = entitlement("burst_tokens", "Burst", {
  explain: (value, values) => {
    const depth = figure(value);
    const refill = figure(values.tokens_per_s ?? values["entitlement.tokens_per_s"] ?? "");
    return depth && refill ? `${text(duration((depth / refill) * 1000))} of the budget` : "";
  },
});

const concurrency = entitlement("concurrency", "Concurrency", { unit: "sequences at once" });
const kv = entitlement("kv_tokens", "KV cache");

/** A budget without depth would refuse everything: propose ten seconds' worth until someone says otherwise. */
export function withBurst(prefix = "") {
  return (values: Values, changed: string, written: ReadonlySet<string>): Values => {
    if (changed !== `${prefix}tokens_per_s` || written.has(`${prefix}burst_tokens`)) return values;
    const n = figure(values[`${prefix}tokens_per_s`] ?? "");
    return { ...values, [`${prefix}burst_tokens`]: n === undefined ? "" : String(n * 10) };
  };
}


export const entitlementSpecs = (pools: readonly Option[], tiers: readonly Option[], projects: readonly Option[], adapters: readonly Option[] = [], initial: { pool?: string; tier?: string } = {}): FieldSpec[] => [
  entitlement("pool", "Pool", { options: pools, initial: initial.pool ?? "" }),
  entitlement("tier", "Tier", { options: tiers, initial: initial.tier ?? "" }),
  concurrency,
  kv,
  rate,
  burst,
  entitlement("adapter", "Adapter", { options: adapters }),
  entitlement("project", "Project", { options: projects }),
  entitlement("slug", "Name", { wide: true }),
  entitlement("description", "Description", { wide: true }),
  entitlement("valid_from", "Begins", { group: "Dates" }),
  entitlement("valid_until", "Ends", { group: "Dates" }),
];

/** The entitlement is called after tenant and pool until someone writes another name. */
export const firstFollow = (values: Values, changed: string, written: ReadonlySet<string>): Values => {
  const named = { ...values };
  if ((changed === "tenant.slug" || changed === "entitlement.pool") && !written.has("entitlement.slug"))
    named["entitlement.slug"] = slugOf(`${values["tenant.slug"] ?? ""}-${values["entitlement.pool"] ?? ""}`);
  return withBurst("entitlement.")(named, changed, written);
};

/** A field of a form that makes several resources at once. */
export const inPart = (part: string, spec: FieldSpec): FieldSpec => ({ ...spec, name: `${part}.${spec.name}` });

/** A tenant with its first share and key, made together. */
export const firstSpecs = (pools: readonly Option[], tiers: readonly Option[], initial: { pool?: string; tier?: string }): FieldSpec[] => {
  const group = "Budget, KV cache and names";
  return [
    inPart("tenant", tenant("slug", "Tenant")),
    inPart("tenant", tenant("description", "Description")),
    inPart("entitlement", entitlement("pool", "Pool", { options: pools, initial: initial.pool ?? "" })),
    inPart("entitlement", entitlement("tier", "Tier", { options: tiers, initial: initial.tier ?? "" })),
    inPart("entitlement", concurrency),
    inPart("key", key("name", "Key for", { initial: "first key" })),
    { ...inPart("entitlement", rate), group },
    { ...inPart("entitlement", burst), group },
    { ...inPart("entitlement", kv), group },
    inPart("entitlement", entitlement("slug", "Entitlement's name", { group })),
  ];
};

const tokens = (value: string): string => (figure(value) ? `${compact(figure(value)!)} tokens` : "");

export const quotaSpecs: FieldSpec[] = [quota("period", "Period"), quota("soft_tokens", "Soft limit", { explain: tokens }), quota("hard_tokens", "Hard limit", { explain: tokens })];


export const memberSpecs: FieldSpec[] = [member("user", "User name", { wide: true })];

/** Members have a tenant and are made on its page. */
const role = member("role", "Role", { initial: "operator" });
export const roleSpecs: FieldSpec[] = [member("user", "User name"), { ...role, options: role.options!.filter((option) => option.value !== "member") }];

const everywhere = { value: "", label: "all tenants (admin, operator)" };
export const groupSpecs = (tenants: readonly Option[]): FieldSpec[] => [group("group", "Group", { wide: true }), group("role", "Role"), group("tenant", "Tenant", { options: [everywhere, ...tenants] })];

export const invitationSpecs = (tenants: readonly Option[]): FieldSpec[] => [
  invitation("name", "For", { wide: true }),
  invitation("role", "Role"),
  invitation("tenant", "Tenant", { options: [everywhere, ...tenants] }),
  invitation("expires_at", "Expires", { required: false }),
];

export const tokenSpecs: FieldSpec[] = [token("name", "Name", { wide: true }), token("scope", "Scope"), token("expires_at", "Expires")];

export const tierSpecs = (slos: readonly Option[]): FieldSpec[] => [
  tier("slug", "Name"),
  tier("slo", "SLO", { options: slos }),
  tier("service_class", "Service class", { wide: true }),
  tier("rank", "Rank"),
  tier("weight", "Weight"),
  tier("over_limit", "Over its limit"),
  tier("queue_limit", "Queue limit", { unit: "requests" }),
  tier("max_wait_s", "Maximum wait", { explain: seconds }),
  tier("max_grammar_bytes", "Largest grammar"),
  tier("description", "Description", { wide: true }),
];

export const sloSpecs: FieldSpec[] = [
  slo("slug", "Name", { wide: true }),
  slo("ttft_s", "TTFT", { explain: seconds }),
  slo("tbt_s", "TBT", { explain: (value) => (figure(value) ? `${compact(1 / figure(value)!)} tokens a second for one reader` : "") }),
  slo("ttlt_s", "TTLT", { explain: seconds }),
  slo("description", "Description", { wide: true }),
];

export const poolSpecs: FieldSpec[] = [
  pool("slug", "Name"),
  pool("model", "Model", { placeholder: "llama-3-8b" }),
  pool("description", "Description", { wide: true }),
  pool("max_model_len", "Context length"),
  pool("default_output_tokens", "Default output bound"),
  pool("max_output_tokens", "Largest output bound"),
  pool("queue_limit", "Queue limit", { unit: "requests" }),
  pool("upstream_model", "Model name on the engines", { group: "Names" }),
  pool("aliases", "Aliases", { group: "Names", placeholder: "default, llama" }),
  pool("scaling_mode", "Scaling", { group: "Scaling" }),
  pool("scaling_driver", "Driver", { group: "Scaling" }),
  pool("min_replicas", "Minimum replicas", { group: "Scaling" }),
  pool("max_replicas", "Maximum replicas", { group: "Scaling" }),
  pool("scaling_params", "Driver's parameters", { group: "Scaling", wide: true, placeholder: '{"deployment": "vllm-llama"}' }),
  pool("scaling_headroom", "Headroom", { group: "Scaling" }),
  pool("drain_limit_s", "Maximum drain time", { group: "Scaling", explain: seconds }),
  pool("scale_up_cooldown_s", "Cooldown up", { group: "Scaling", explain: seconds }),
  pool("scale_down_cooldown_s", "Cooldown down", { group: "Scaling", explain: seconds }),
  pool("sleep_after_s", "Sleeps after", { group: "Scaling", explain: seconds, placeholder: "never" }),
  pool("wakes_in_s", "Wakes in", { group: "Scaling", explain: seconds, placeholder: "20 if its engines sleep" }),
  pool("threshold", "Threshold", { group: "Under contention" }),
  pool("headroom_slots", "Headroom", { group: "Under contention" }),
  pool("slo_mean_s", "Mean SLO", { group: "Under contention" }),
  pool("kv_bytes_per_token", "KV bytes per token", { group: "Under contention", unit: "bytes" }),
  pool("queue_bytes", "Queue size", { group: "Under contention" }),
  pool("coefficients", "Coefficients", { group: "Under contention", wide: true, placeholder: '{"debt": 4.0, "gamma_debt": 0.7}' }),
  pool("predictor", "Output lengths", { group: "Estimates" }),
  pool("engine", "Kind of engine", { group: "Engines" }),
  pool("prefix_cache", "Prefix cache", { group: "Engines" }),
  pool("load_adapters", "Load adapters", { group: "Engines" }),
  pool("prefill_credit", "Prefill credit", { group: "Engines", placeholder: "adjusted automatically" }),
  pool("tokenizer", "Tokenizer", { group: "Estimates" }),
];

export const backendSpecs = (pools: readonly Option[], initial: { pool?: string; url?: string } = {}): FieldSpec[] => [
  backend("url", "URL", { wide: true, placeholder: "http://10.0.0.7:8000", initial: initial.url ?? "" }),
  backend("pool", "Pool", { options: pools, initial: initial.pool ?? "" }),
  backend("slug", "Name"),
  backend("slots", "Slots", { unit: "sequences", placeholder: "from the engine" }),
  backend("kv_tokens", "KV cache", { placeholder: "from the engine" }),
  backend("tokens_per_s", "Throughput"),
  backend("phase", "Phase"),
  backend("api_key", "API key"),
  backend("dcgm_url", "GPU exporter URL", { group: "More", placeholder: "http://10.0.0.7:9400/metrics" }),
  backend("managed", "May be removed by the scaling driver", { group: "More" }),
  backend("description", "Description", { group: "More", wide: true }),
];

export const adapterSpecs = (pools: readonly Option[]): FieldSpec[] => [
  adapter("pool", "Pool", { options: pools }),
  adapter("model", "Model", { placeholder: "llama-3-8b-sql" }),
  adapter("slug", "Name"),
  adapter("upstream_model", "Name on the engines"),
  adapter("source", "Source", { wide: true, placeholder: "/adapters/sql" }),
  adapter("description", "Description", { wide: true }),
];

export const priceSpecs = (pools: readonly Option[]): FieldSpec[] => [
  price("pool", "Pool", { options: pools }),
  price("model", "Adapter", { placeholder: "llama-3-8b-sql" }),
  price("valid_from", "From"),
  price("currency", "Currency"),
  price("per_million_input", "Million input tokens"),
  price("per_million_cached", "Million cached input tokens"),
  price("per_million_output", "Million output tokens"),
  price("per_gpu_second", "GPU second"),
  price("slots_per_gpu", "Requests that share a GPU"),
  price("per_reserved_used_second", "Reserved GPU second, used"),
  price("per_reserved_idle_second", "Reserved GPU second, idle"),
];

export const budgetSpecs: FieldSpec[] = [
  budget("scope", "Of"),
  budget("name", "Name", { placeholder: "chat" }),
  budget("currency", "Currency"),
  budget("soft_amount", "Soft limit a month"),
  budget("hard_amount", "Hard limit a month"),
  budget("alert_at", "Alerts at", { wide: true, placeholder: "[50, 80]" }),
];

export const projectSpecs: FieldSpec[] = [
  project("slug", "Name", { wide: true }),
  project("description", "Description", { wide: true }),
  project("aliases", "Aliases", { wide: true, placeholder: '{"gpt-4o": "llama-70b"}' }),
  project("default_model", "Default model"),
  project("fallbacks", "Fallbacks", { wide: true, placeholder: '{"llama-70b": {"to": "llama-8b", "when": ["unavailable"]}}' }),
  project("user_requests_per_minute", "Each user's requests", { unit: "a minute" }),
  project("user_tokens_per_minute", "Each user's tokens", { unit: "a minute" }),
  project("user_concurrency", "Each user's requests at once"),
];

/** A key opens a project's entitlements, or a single one. */
export const keySpecs = (entitlements: readonly Option[], projects: readonly Option[], initial: { entitlement?: string; project?: string } = {}): FieldSpec[] => [
  key("name", "Name", { wide: true, placeholder: "nightly reports" }),
  key("project", "Project", { options: projects, initial: initial.project ?? "" }),
  key("entitlements", "Only these entitlements", { placeholder: "all of the project's" }),
  key("entitlement", "Or a single entitlement", { options: entitlements, initial: initial.entitlement ?? "" }),
  key("user", "User", { placeholder: "ada@example.com" }),
  key("requests_per_minute", "Requests", { unit: "a minute" }),
  key("tokens_per_minute", "Tokens", { unit: "a minute" }),
  key("concurrency", "Requests at once"),
  key("tokens_per_day", "Tokens a day", { explain: tokens }),
  key("user_requests_per_minute", "Each user's requests", { unit: "a minute" }),
  key("user_tokens_per_minute", "Each user's tokens", { unit: "a minute" }),
  key("user_concurrency", "Each user's requests at once"),
  key("expires_at", "Expires"),
];
