import { expect, it } from "vitest";
import { fieldErrors } from "../../api/client";
import { firstFollow } from "../../pages/tenants/specs";
import { body, changedByOthers, changedMeanwhile, check, choicesOf, isDirty, noted, parse, place, show, slugOf, start, type FieldSpec, type Values } from "./form";

const slug: FieldSpec = { name: "slug", label: "Name", kind: "slug", required: true, fixed: true };
const concurrency: FieldSpec = { name: "concurrency", label: "Concurrency", kind: "integer", min: 1, required: true, initial: "8" };
const rate: FieldSpec = { name: "tokens_per_s", label: "Rate", kind: "number", min: 0 };
const until: FieldSpec = { name: "valid_until", label: "Until", kind: "moment" };
const key: FieldSpec = { name: "api_key", label: "Key", kind: "secret" };
const specs = [slug, concurrency, rate, until, key];

it("says what to write instead of what was typed", () => {
  expect(parse(slug, "Acme")).toEqual({ error: "Use lower-case letters." });
  expect(parse(slug, "-acme")).toHaveProperty("error");
  expect(parse(concurrency, "0")).toEqual({ error: "Use 1 or more." });
  expect(parse(concurrency, "1.5")).toEqual({ error: "Use a whole number." });
  expect(parse(rate, "fast")).toEqual({ error: "Use a number, such as 12 or 0.5." });
  expect(parse(concurrency, "")).toEqual({ error: "This field is required." });
});

it("a choice that may be empty can be emptied again, and one that may not is never", () => {
  const project: FieldSpec = { name: "project", label: "Project", kind: "choice", options: [{ value: "chat", label: "chat" }] };
  const labels = (spec: FieldSpec, value: string) => choicesOf(spec, value).map((option) => option.label);
  expect(labels(project, "chat")).toEqual(["none", "chat"]);
  expect(labels({ ...project, options: [{ value: "", label: "all" }, ...project.options!] }, "")).toEqual(["all", "chat"]);
  expect(labels({ ...project, required: true }, "")).toEqual(["choose", "chat"]);
  expect(labels({ ...project, required: true }, "chat")).toEqual(["chat"]);
  expect(labels({ ...project, required: true }, "gone")).toEqual(["gone", "chat"]);
});

it("reads figures as people copy them, and no others", () => {
  expect(parse(rate, "12,000")).toEqual({ value: 12000 });
  expect(parse(rate, "1 200 000")).toEqual({ value: 1_200_000 });
  expect(parse(rate, "1,5")).toHaveProperty("error");
});

it("leaves to the server what is left empty, and clears what was there", () => {
  const fresh = { ...start(specs), slug: "acme-llama" };
  expect(body(specs, fresh)).toEqual({ slug: "acme-llama", concurrency: 8 });
  const before = start(specs, { slug: "acme-llama", concurrency: 8, tokens_per_s: 100, valid_until: "2026-11-21T08:00:00Z" });
  expect(body(specs, { ...before, valid_until: "" }, before)).toEqual({ valid_until: null });
  expect(body(specs, { ...before, concurrency: "9", slug: "other" }, before)).toEqual({ concurrency: 9 });
});

it("a moment survives being shown and read again", () => {
  const text = show(until, "2026-11-21T08:30:00Z");
  expect(parse(until, text)).toEqual({ value: "2026-11-21T08:30:00.000Z" });
});

it("nested names make nested bodies and find nested errors", () => {
  const nested: FieldSpec[] = [{ ...slug, name: "tenant.slug" }, { ...concurrency, name: "entitlement.concurrency" }];
  const values = { "tenant.slug": "umbrella", "entitlement.concurrency": "4" };
  expect(body(nested, values)).toEqual({ tenant: { slug: "umbrella" }, entitlement: { concurrency: 4 } });
  const found = fieldErrors({ tenant: { slug: ["Taken."] }, entitlement: { non_field_errors: ["No."], kv: ["Odd."] } });
  expect(place(nested, found)).toEqual({ fields: { "tenant.slug": "Taken." }, general: "No. entitlement.kv: Odd." });
});

it("knows what is wrong, and whether something was typed", () => {
  expect(check(specs, start(specs))).toEqual({ slug: "This field is required." });
  expect(isDirty({ a: "1" }, { a: "1" })).toBe(false);
  expect(isDirty({ a: "2" }, { a: "1" })).toBe(true);
});

it("makes names out of sentences", () => {
  expect(["Acme Corp.", "  Straße 7 ", "meta-llama/Llama-3.1-8B", "??"].map(slugOf)).toEqual(["acme-corp", "stra-e-7", "meta-llama-llama-3-1-8b", ""]);
});

it("a name that was proposed goes on following after the form was refused, and one written by hand does not", () => {
  let values: Values = { "tenant.slug": "Acme", "entitlement.pool": "llama", "entitlement.slug": "" };
  let written: ReadonlySet<string> = new Set();
  const type = (name: string, value: string) => {
    written = noted(written, name, value);
    values = firstFollow({ ...values, [name]: value }, name, written);
  };
  type("tenant.slug", "globex");
  expect(values["entitlement.slug"]).toBe("globex-llama");
  // Refused: nothing of it counts as written. The next name takes the entitlement with it.
  type("tenant.slug", "umbrella");
  expect(values["entitlement.slug"]).toBe("umbrella-llama");
  type("entitlement.slug", "mine");
  type("tenant.slug", "initech");
  expect(values["entitlement.slug"]).toBe("mine");
  type("entitlement.slug", "");
  type("tenant.slug", "hooli");
  expect(values["entitlement.slug"]).toBe("hooli-llama");
});

it("names what somebody else has changed of what is about to be saved, and nothing besides", () => {
  const before = { slug: "acme", concurrency: "8", tokens_per_s: "5", valid_until: "", api_key: "" };
  const typed = { ...before, concurrency: "16", tokens_per_s: "7", api_key: "secret" };
  const now = { ...before, concurrency: "4", tokens_per_s: "7", valid_until: "2026-12-01T00:00" };
  expect(changedByOthers(specs, typed, before, now)).toEqual([concurrency]); // both wrote the same rate
  expect(changedMeanwhile(concurrency, before, now)).toBe("Another user changed this from “8” to “4” meanwhile. Save again to replace that.");
  expect(changedMeanwhile(until, now, before)).toContain("to empty");
});
