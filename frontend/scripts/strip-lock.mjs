// Removes the funding links from package-lock.json: the lock then names no host at all, so that it works behind any
// registry and a single grep for "://" proves it. Run by `npm run lock`; `npm ci` does not read these fields.
import { readFileSync, writeFileSync } from "node:fs";

const folder = process.argv[2] ?? "."; // of the lock, from frontend/
const file = new URL(`../${folder}/package-lock.json`, import.meta.url);
const lock = JSON.parse(readFileSync(file, "utf8"));
for (const entry of Object.values(lock.packages)) delete entry.funding;
const text = `${JSON.stringify(lock, null, 2)}\n`;
if (text.includes("://")) throw new Error("package-lock.json still names a host; find it with: grep '://' package-lock.json");
writeFileSync(file, text);
