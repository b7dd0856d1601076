/** The fields of the books' forms: names as the API has them, units and meanings as people need them. */

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

const slug = (what: string): FieldSpec => ({
  name: "slug",
  label: "Name",
  kind: "slug",
  required: true,
  fixed: true,
  maxLength: 63,
  help: `The ${what}'s name in addresses, files and metrics. It cannot be changed later.`,
});

const description: FieldSpec = { name: "description", label: "Description", kind: "text", maxLength: 200, wide: true, help: "One line for people." };

export const tenantSpecs: FieldSpec[] = [{ ...slug("tenant"), wide: true }, description];

const rate: FieldSpec = {
  name: "tokens_per_s",
  label: "Token budget",
  unit: "tokens/s",
  kind: "number",
  min: 0,
  initial: "0",
  help: "Prompt and answer together, refilled each second. 0 sets no budget.",
  explain: (value) => {
    const n = figure(value);
    return n ? `${compact(n * 3600)} tokens an hour, ${compact(n * 86_400)} a day` : "";
  },
};

const burst: FieldSpec = {
  name: "burst_tokens",
  label: "Burst",
  unit: "tokens",
  kind: "number",
  min: 0,
  initial: "0",
  help: "How much may be used at once before the budget counts; needed with a budget.",
  explain: (value, values) => {
    const depth = figure(value);
    const refill = figure(values.tokens_per_s ?? values["entitlement.tokens_per_s"] ?? "");
    return depth && refill ? `${text(duration((depth / refill) * 1000))} of the budget` : "";
  },
};

const concurrency: FieldSpec = {
  name: "concurrency",
  label: "Concurrency",
  unit: "requests at once",
  kind: "integer",
  required: true,
  min: 1,
  initial: "8",
  help: "How many may run at the same time.",
};

const kv: FieldSpec = { name: "kv_tokens", label: "KV cache", unit: "tokens", kind: "integer", min: 0, initial: "0", help: "What its running requests may hold together. 0 sets no limit." };

/** A budget without depth would refuse everything: propose ten seconds' worth until someone says otherwise. */
export function withBurst(prefix = "") {
  return (values: Values, changed: string, written: ReadonlySet<string>): Values => {
    if (changed !== `${prefix}tokens_per_s` || written.has(`${prefix}burst_tokens`)) return values;
    const n = figure(values[`${prefix}tokens_per_s`] ?? "");
    return { ...values, [`${prefix}burst_tokens`]: n === undefined ? "" : String(n * 10) };
  };
}

export const entitlementSpecs = (pools: readonly Option[], tiers: readonly Option[], initial: { pool?: string; tier?: string } = {}): FieldSpec[] => [
  { name: "pool", label: "Pool", kind: "choice", required: true, fixed: true, options: pools, initial: initial.pool ?? "" },
  { name: "tier", label: "Tier", kind: "choice", required: true, options: tiers, initial: initial.tier ?? "", help: "Service class, promise about time and queueing rule." },
  concurrency,
  kv,
  rate,
  burst,
  { ...slug("entitlement"), wide: true },
  description,
  { name: "valid_from", label: "Begins", kind: "moment", group: "Dates", help: "Empty: at once." },
  { name: "valid_until", label: "Ends", kind: "moment", group: "Dates", help: "Empty: never." },
];

/** The entitlement is called after tenant and pool until someone writes another name. */
export const firstFollow = (values: Values, changed: string, written: ReadonlySet<string>): Values => {
  const named = { ...values };
  if ((changed === "tenant.slug" || changed === "entitlement.pool") && !written.has("entitlement.slug"))
    named["entitlement.slug"] = slugOf(`${values["tenant.slug"] ?? ""}-${values["entitlement.pool"] ?? ""}`);
  return withBurst("entitlement.")(named, changed, written);
};

/** A tenant with its first share and key, made together. */
export const firstSpecs = (pools: readonly Option[], tiers: readonly Option[], initial: { pool?: string; tier?: string }): FieldSpec[] => {
  const inPart = (part: string, spec: FieldSpec): FieldSpec => ({ ...spec, name: `${part}.${spec.name}` });
  return [
    { ...inPart("tenant", slug("tenant")), label: "Tenant" },
    { ...inPart("tenant", description), wide: false },
    { name: "entitlement.pool", label: "Pool", kind: "choice", required: true, options: pools, initial: initial.pool ?? "" },
    { name: "entitlement.tier", label: "Tier", kind: "choice", required: true, options: tiers, initial: initial.tier ?? "", help: "Service class, promise about time and queueing rule." },
    inPart("entitlement", concurrency),
    { name: "key.name", label: "Key for", kind: "text", required: true, maxLength: 100, initial: "first key", help: "What the key is for, such as 'nightly reports'." },
    { ...inPart("entitlement", rate), group: "Budget, KV cache and names" },
    { ...inPart("entitlement", burst), group: "Budget, KV cache and names" },
    { ...inPart("entitlement", kv), group: "Budget, KV cache and names" },
    { ...inPart("entitlement", slug("entitlement")), label: "Entitlement's name", group: "Budget, KV cache and names" },
  ];
};

export const quotaSpecs: FieldSpec[] = [
  { name: "period", label: "Period", kind: "choice", required: true, fixed: true, initial: "month", options: [{ value: "day", label: "day (UTC)" }, { value: "month", label: "month (UTC)" }] },
  { name: "soft_tokens", label: "Soft limit", unit: "tokens", kind: "integer", min: 1, help: "Passing it raises an alert. Empty: none.", explain: (value) => (figure(value) ? `${compact(figure(value)!)} tokens` : "") },
  { name: "hard_tokens", label: "Hard limit", unit: "tokens", kind: "integer", min: 1, help: "Beyond it requests are refused until the period ends. Empty: none.", explain: (value) => (figure(value) ? `${compact(figure(value)!)} tokens` : "") },
];

export const memberSpecs: FieldSpec[] = [{ name: "user", label: "User name", kind: "text", required: true, fixed: true, wide: true, help: "Of somebody who can log in already." }];

export const roleSpecs: FieldSpec[] = [
  { name: "user", label: "User name", kind: "text", required: true, fixed: true, help: "Of somebody who can log in already." },
  {
    name: "role",
    label: "Role",
    kind: "choice",
    required: true,
    initial: "operator",
    options: [
      { value: "admin", label: "admin: writes everything" },
      { value: "operator", label: "operator: sees everything, changes policies, drains backends" },
    ],
  },
];

const CLASSES: Option[] = [
  { value: "dedicated", label: "dedicated: reserved, may burst" },
  { value: "guaranteed", label: "guaranteed: reserved, never bursts" },
  { value: "elastic", label: "elastic: baseline over time, owed debt" },
  { value: "spot", label: "spot: surplus only, refused first" },
  { value: "preemptible", label: "preemptible: surplus only, may be ended" },
];

export const tierSpecs = (slos: readonly Option[]): FieldSpec[] => [
  slug("tier"),
  { name: "slo", label: "SLO", kind: "choice", required: true, options: slos, help: "The promise about time." },
  { name: "service_class", label: "Service class", kind: "choice", required: true, initial: "elastic", options: CLASSES, wide: true },
  { name: "rank", label: "Rank", kind: "integer", min: 0, max: 1000, required: true, initial: "1", help: "Strict order of tiers where a policy uses it: 0 goes first." },
  { name: "weight", label: "Weight", kind: "number", min: 0.001, required: true, initial: "30", help: "Share where shares are weighted; only ratios matter." },
  {
    name: "over_limit",
    label: "Over its limit",
    kind: "choice",
    required: true,
    initial: "refuse",
    options: [
      { value: "refuse", label: "refuse with 429 and Retry-After" },
      { value: "wait", label: "wait in the queue" },
    ],
  },
  { name: "queue_limit", label: "Queue limit", unit: "requests", kind: "integer", min: 0, required: true, initial: "100", help: "Of one entitlement. 0 refuses instead of queueing." },
  { name: "max_wait_s", label: "Longest wait", unit: "seconds", kind: "number", min: 0.1, max: 86_400, required: true, initial: "30", help: "A request that waited this long is refused.", explain: seconds },
  { name: "max_grammar_bytes", label: "Largest grammar", unit: "bytes", kind: "integer", min: 0, max: 131_072, required: true, initial: "131072", help: "Schema, regex or grammar of one request: the engine compiles it before the first token. 0 allows no structured output." },
  description,
];

export const sloSpecs: FieldSpec[] = [
  { ...slug("SLO"), wide: true },
  { name: "ttft_s", label: "TTFT", unit: "seconds", kind: "number", min: 0.001, help: "Time to first token. Interactive promises have TTFT and TBT.", explain: seconds },
  { name: "tbt_s", label: "TBT", unit: "seconds", kind: "number", min: 0.001, help: "Time between tokens.", explain: (value) => (figure(value) ? `${compact(1 / figure(value)!)} tokens a second for one reader` : "") },
  { name: "ttlt_s", label: "TTLT", unit: "seconds", kind: "number", min: 0.001, help: "Time to last token: promises about whole answers have only this.", explain: seconds },
  description,
];

export const poolSpecs: FieldSpec[] = [
  slug("pool"),
  { name: "model", label: "Model", kind: "text", required: true, maxLength: 200, placeholder: "llama-3-8b", help: "The name clients ask for." },
  description,
  { name: "max_model_len", label: "Context length", unit: "tokens", kind: "integer", min: 1, required: true, initial: "8192", help: "Prompt and answer together." },
  { name: "default_output_tokens", label: "Default output bound", unit: "tokens", kind: "integer", min: 1, required: true, initial: "512", help: "Where a client names no max_tokens." },
  { name: "max_output_tokens", label: "Largest output bound", unit: "tokens", kind: "integer", min: 1, required: true, initial: "4096", help: "A larger max_tokens is refused." },
  { name: "queue_limit", label: "Queue limit", unit: "requests", kind: "integer", min: 0, required: true, initial: "10000", help: "Requests that may wait in the pool." },
  { name: "upstream_model", label: "Model's name at the engines", kind: "text", maxLength: 200, group: "Names", help: "Empty: the same as the model." },
  { name: "aliases", label: "Aliases", kind: "words", group: "Names", placeholder: "default, llama", help: "Other names clients may ask for." },
  { name: "scaling_mode", label: "Scaling", kind: "choice", initial: "off", group: "Scaling", options: [{ value: "off", label: "off: nobody plans" }, { value: "advise", label: "advise: proposals are shown" }, { value: "automatic", label: "automatic: the driver acts" }] },
  { name: "scaling_driver", label: "Driver", kind: "choice", initial: "", group: "Scaling", options: [{ value: "", label: "none" }, { value: "local", label: "local: processes of `make up`" }, { value: "kubernetes", label: "kubernetes: a Deployment's scale" }, { value: "webhook", label: "webhook: a program of yours" }, { value: "external", label: "external: KEDA or an HPA reads it" }] },
  { name: "min_replicas", label: "Fewest replicas", kind: "integer", min: 1, initial: "1", group: "Scaling" },
  { name: "max_replicas", label: "Most replicas", kind: "integer", min: 1, max: 10_000, initial: "1", group: "Scaling", help: "No more than these can hold may be promised while scaling is on." },
  { name: "scaling_params", label: "Driver's parameters", kind: "json", group: "Scaling", wide: true, placeholder: '{"deployment": "vllm-llama"}' },
  { name: "scaling_headroom", label: "Headroom", kind: "number", min: 0, max: 10, initial: "0.2", group: "Scaling", help: "Kept free above the demand: 0.2 is 20 %." },
  { name: "drain_limit_s", label: "Longest drain", unit: "seconds", kind: "number", min: 1, max: 86_400, initial: "600", group: "Scaling", explain: seconds },
  { name: "scale_up_cooldown_s", label: "Cooldown up", unit: "seconds", kind: "number", min: 1, max: 86_400, initial: "30", group: "Scaling", explain: seconds },
  { name: "scale_down_cooldown_s", label: "Cooldown down", unit: "seconds", kind: "number", min: 1, max: 86_400, initial: "300", group: "Scaling", explain: seconds },
  { name: "threshold", label: "Threshold", kind: "number", min: 0, initial: "0", group: "Under contention", help: "Weight under which a contended pool refuses. 0 refuses nobody." },
  { name: "headroom_slots", label: "Headroom", unit: "slots", kind: "integer", min: 0, max: 100_000, initial: "0", group: "Under contention", help: "The last free slots, kept for requests within a dedicated, guaranteed or elastic baseline. 0: all that is idle is lent." },
  { name: "slo_mean_s", label: "Mean SLO", unit: "seconds", kind: "number", min: 0.001, group: "Under contention", help: "What a target is compared with in the weight. Empty: the mean over those bound." },
  { name: "kv_bytes_per_token", label: "KV bytes per token", unit: "bytes", kind: "integer", min: 1, initial: "131072", group: "Under contention", help: "2 × layers × KV heads × head size × bytes." },
  { name: "queue_bytes", label: "Queue size", unit: "bytes", kind: "integer", min: 1, initial: "268435456", group: "Under contention", help: "Bodies of waiting requests, over all gateways." },
  { name: "coefficients", label: "Coefficients", kind: "json", group: "Under contention", wide: true, placeholder: '{"debt": 4.0, "gamma_debt": 0.7}', help: "Of weight, debt and burst, where they differ from the defaults." },
  { name: "predictor", label: "Output lengths", kind: "choice", initial: "similar", group: "Estimates", options: [{ value: "off", label: "off: every answer reaches its bound" }, { value: "history", label: "history: the key's past answers" }, { value: "similar", label: "similar: answers to similar prompts" }] },
  { name: "prefix_cache", label: "Prefix cache", kind: "choice", initial: "isolated", group: "Engines", options: [{ value: "isolated", label: "isolated: each tenant its own" }, { value: "shared", label: "shared: all tenants together" }, { value: "unsalted", label: "unsalted: engine takes no cache_salt" }], help: "Shared saves prefill where tenants send equal prompts, and lets each time what others have asked. Unsalted: only for engines that refuse the field." },
  { name: "tokenizer", label: "Tokenizer", kind: "text", maxLength: 300, group: "Estimates", help: "Path of a tokenizer.json on the gateways, or 'backend'. Empty: from words and bytes." },
];

export const backendSpecs = (pools: readonly Option[], initial: { pool?: string; url?: string } = {}): FieldSpec[] => [
  { name: "url", label: "URL", kind: "text", required: true, maxLength: 200, wide: true, placeholder: "http://10.0.0.7:8000", initial: initial.url ?? "", help: "Scheme, host and port of the engine; no path." },
  { name: "pool", label: "Pool", kind: "choice", required: true, options: pools, initial: initial.pool ?? "" },
  slug("backend"),
  { name: "slots", label: "Slots", unit: "sequences", kind: "integer", min: 1, max: 100_000, required: true, initial: "32", help: "It may run at once (vLLM's --max-num-seqs)." },
  { name: "kv_tokens", label: "KV cache", unit: "tokens", kind: "integer", min: 1, required: true, initial: "200000", help: "vLLM logs it at start; looking at the engine fills it in." },
  { name: "tokens_per_s", label: "Throughput", unit: "tokens/s", kind: "number", min: 0, initial: "0", help: "As manage.py calibrate measures it. 0: not measured, so no bound." },
  { name: "api_key", label: "API key", kind: "secret", maxLength: 500, help: "vLLM's --api-key. Written once, never shown; empty leaves it as it is." },
  { name: "dcgm_url", label: "GPU exporter URL", kind: "text", maxLength: 200, group: "More", placeholder: "http://10.0.0.7:9400/metrics", help: "Empty: the engine's own /metrics is tried." },
  { name: "managed", label: "May be removed by the scaling driver", kind: "flag", group: "More" },
  { ...description, group: "More" },
];

export const priceSpecs = (pools: readonly Option[]): FieldSpec[] => [
  { name: "pool", label: "Pool", kind: "choice", required: true, fixed: true, options: pools },
  { name: "valid_from", label: "From", kind: "moment", required: true, help: "Whole hours count." },
  { name: "currency", label: "Currency", kind: "text", required: true, maxLength: 3, initial: "USD" },
  { name: "per_million_input", label: "Million input tokens", kind: "number", min: 0, initial: "0" },
  { name: "per_million_output", label: "Million output tokens", kind: "number", min: 0, initial: "0" },
  { name: "per_gpu_second", label: "GPU second", kind: "number", min: 0, initial: "0" },
  { name: "slots_per_gpu", label: "Requests that share a GPU", kind: "integer", min: 1, initial: "1" },
];

export const keySpecs = (entitlements: readonly Option[], initial = ""): FieldSpec[] => [
  { name: "name", label: "Name", kind: "text", required: true, maxLength: 100, wide: true, placeholder: "nightly reports", help: "What it is for." },
  { name: "entitlement", label: "Entitlement", kind: "choice", required: true, options: entitlements, initial },
  { name: "expires_at", label: "Expires", kind: "moment", help: "Empty: never." },
];
