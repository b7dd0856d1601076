/** Every text of the console that a user can read, by file and line: `npm run strings`. Read from the syntax, not by patterns. */

import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { parseSync } from "vite";

const src = fileURLToPath(new URL("../src", import.meta.url));
/** Attributes and fields that are code, not text. */
const code = new Set(["className", "class", "d", "viewBox", "href", "to", "path", "key", "id", "type", "style", "data-testid", "points", "transform"]);
/** Fields and attributes whose value is text even where it is one word. */
const text = new Set(["label", "title", "aria-label", "placeholder", "help", "hint", "heading", "empty", "alt", "summary", "name"]);

const files = (folder) =>
  readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && /\.tsx?$/.test(entry.name) && !/\.test\.tsx?$/.test(entry.name))
    .map((entry) => join(entry.parentPath, entry.name))
    .filter((file) => !/\/api\/(schema|generated)\.ts$/.test(file))
    .sort();

const isClasses = (value) => value.split(/\s+/).every((word) => !word || /[-:[\]/]|^(flex|grid|block|hidden|truncate|relative|absolute|fixed|sticky|underline|rounded|border|card|muted|inline|italic|shadow|uppercase|ring)$/.test(word));
const isSentence = (value) => /[A-Za-z]{2,}/.test(value) && /\S\s+\S/.test(value.trim()) && !isClasses(value) && !/^\s*(select|M|m)\s?[\d.]/.test(value);

function* inNode(node, parents) {
  if (!node || typeof node !== "object") return;
  if (Array.isArray(node)) {
    for (const each of node) yield* inNode(each, parents);
    return;
  }
  if (typeof node.type !== "string") return;
  if (node.type === "ImportDeclaration" || /^TS(?!As|Satisfies|NonNull)/.test(node.type) || node.type === "ThrowStatement") return;
  const owner = parents.findLast((p) => p.type === "JSXAttribute" || p.type === "Property");
  const name = owner && String(owner.type === "JSXAttribute" ? (owner.name.name.name ?? owner.name.name) : (owner.key.name ?? owner.key.value));
  const isKey = parents.at(-1)?.type === "Property" && parents.at(-1).key === node;
  const add = (value) => ({ start: node.start, text: value.replace(/\s+/g, " ").trim() });
  if (node.type === "JSXText" && /[A-Za-z]{2,}/.test(node.value)) yield add(node.value);
  if (!code.has(name) && !isKey) {
    if (node.type === "Literal" && typeof node.value === "string" && (isSentence(node.value) || (text.has(name) && /^[A-Z]/.test(node.value)))) yield add(node.value);
    if (node.type === "TemplateLiteral") {
      const whole = node.quasis.map((q) => q.value.cooked).join("{…}");
      if (isSentence(whole.replaceAll("{…}", "0"))) yield add(whole);
    }
  }
  for (const [field, child] of Object.entries(node)) if (field !== "type" && child && typeof child === "object") yield* inNode(child, [...parents, node]);
}

export function strings() {
  return files(src).flatMap((file) => {
    const source = readFileSync(file, "utf8");
    const { program, errors } = parseSync(file, source);
    if (errors.length > 0) throw new Error(`${file}: ${errors[0].message}`);
    return [...inNode(program, [])].map(({ start, text }) => ({ file: relative(src, file), line: source.slice(0, start).split("\n").length, text }));
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) for (const { file, line, text } of strings()) console.log(`${file}:${line}: ${text}`);
