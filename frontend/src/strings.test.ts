/**
 * The console's words. Texts stand beside the component that shows them; `npm run strings` prints all of them as one
 * catalogue. What holds them together is here: plain words, the glossary's terms, and one title per page.
 */

import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { strings } from "../scripts/strings.mjs";
import { pages } from "./components/navigation";
import { FIELDS } from "./api/generated";

interface Text {
  text: string;
  at: string;
}

const texts: Text[] = [
  ...strings().map(({ file, line, text }) => ({ text, at: `src/${file}:${line}` })),
  ...Object.entries(FIELDS).flatMap(([route, fields]) =>
    Object.entries(fields).flatMap(([name, field]: [string, { help?: string; options?: readonly { label: string }[] }]) =>
      [field.help ?? "", ...(field.options ?? []).map((option) => option.label)].map((text) => ({ text, at: `field ${route}.${name}` })),
    ),
  ),
  // what the form of policies shows of each parameter, which the server has from the policies' own files
  ...readFileSync(new URL("../../docs/reference/policy-parameters.md", import.meta.url), "utf8")
    .split("\n")
    .filter((line) => line.startsWith("| `"))
    .map((line) => ({ text: line.split(" | ")[2] ?? "", at: line.slice(0, 60) })),
];

/** Words that left readers guessing, and what to write instead. */
const riddles: [RegExp, string][] = [
  [/\bnobody\b|\bsomebody\b|\beverybody\b|\bpeople\b(?! ·|$)/i, "name the role, the tenant or the part"],
  [/\btold\b|\btells\b/i, "reported, sent, shown"],
  [/\b(says?|said)\b/i, "reports, reported, predicted"],
  [/\bin (your|their|its) sight\b|\bout of sight\b/i, "visible to you"],
  [/\bword of\b|'s word\b/i, "decision, request, report"],
  [/\bwhoever\b|\bwhatever\b/i, "name it"],
  [/\bgoes on\b|\bgo on\b/i, "continues"],
  [/\b(comes|came) of it\b|\bbecame of\b/i, "result"],
  [/\bdesk\b|\bdoorbell\b|\bbooks\b|\bears\b|\btwins?\b/i, "the glossary's term"],
  [/\blaid around\b|\bput up\b|\bstands in\b/i, "plain words"],
];

/** One word for one thing: another word for a term of docs/reference/glossary.md, and the term. */
const synonyms: [RegExp, string][] = [
  [/\bcustomers?\b|\bclient organisations?\b/i, "tenant"],
  [/\bthrottl/i, "refused"],
  [/\bmodel servers?\b|\bGPU nodes?\b|\binference servers?\b/i, "backend or replica"],
  [/\bjobs?\b/i, "request"],
  [/\bpromised?s?\b/i, "SLO, target"],
  [/\bAPI tokens?\b/i, "key for /v1, access token for the management API"],
  [/\bpriority class\b|\bQoS class\b/i, "service class"],
  [/\btime[- ]to[- ]first[- ]byte\b|\bTTFB\b/i, "TTFT"],
];

const offences = (rules: [RegExp, string][]): string[] =>
  texts.flatMap(({ text, at }) => rules.filter(([pattern]) => pattern.test(text)).map(([, instead]) => `${at}: "${text}" (write: ${instead})`));

/** Fails with the whole list, one a line. */
const none = (wrong: string[]): void => expect(wrong, wrong.join("\n")).toEqual([]);

it("finds the texts of every kind of place", () => {
  const all = new Set(texts.map(({ text }) => text));
  expect(texts.length).toBeGreaterThan(1000);
  expect(all).toContain("No requests waiting."); // a literal
  expect(all).toContain("Request details: why it waited, where it ran"); // text of an element
  expect(all).toContain("Replica {…} of pool {…} has not been seen yet."); // a template
  expect([...all].filter((text) => /^(flex|grid|px-)/.test(text) && !text.includes("{…}"))).toEqual([]); // no class names
});

it("uses plain words", () => none(offences(riddles)));

it("uses one word for one thing", () => none(offences(synonyms)));

it("titles every page as the navigation names it", () => {
  const titles = texts.filter(({ text }) => text.endsWith(" · Quartermaster")).map(({ text }) => text.replace(" · Quartermaster", ""));
  expect(pages.map((page) => page.label).filter((label) => !titles.includes(label))).toEqual([]);
});
