import { expect, it } from "vitest";
import { commands, GO, publicPart, type Found } from "./commands";

const acme: Found = { kind: "tenant", id: "acme", label: "acme", tenant: "acme", state: "" };
const key: Found = { kind: "key", id: "k2iTIrq3PyL3", label: "ci (qm-k2iTIrq3PyL3)", tenant: "acme", state: "" };

it("a key's secret never leaves the window", () => {
  expect(publicPart("qm-k2iTIrq3PyL3.-LAHGwQKM72y")).toBe("qm-k2iTIrq3PyL3");
  expect(publicPart(" acme ")).toBe("acme");
});

it("a leaked key leads to where it is revoked and to its requests", () => {
  const list = commands("qm-k2iTIrq3PyL3", [key], "admin");
  expect(list.map(({ to }) => to)).toEqual(["/keys/k2iTIrq3PyL3", "/requests?key_id=k2iTIrq3PyL3", "/tenants/acme/keys"]);
});

it("a found tenant can be opened, looked into and paused, and a paused one resumed", () => {
  const list = commands("acme", [acme], "operator");
  expect(list[0]).toMatchObject({ section: "Objects", to: "/tenants/acme" });
  expect(list.find(({ act }) => typeof act === "object")).toMatchObject({ label: "Pause acme", act: { kind: "pause", name: "acme" } });
  expect(commands("acme", [{ ...acme, state: "paused" }], "operator").some(({ label }) => label === "Resume acme")).toBe(true);
});

it("members are offered what they may do, and without a role nothing is offered", () => {
  const labels = commands("", [acme], "member").map(({ label }) => label);
  expect(labels).toContain("Requests of acme");
  expect(labels).not.toContain("Pause acme");
  expect(labels).not.toContain("Policies");
  expect(labels).not.toContain("Add a tenant");
  expect(commands("", [], null)).toEqual([]);
});

it("pages are found by any part of their words, and each shortcut has a letter of its own", () => {
  expect(commands("people", [], "member").map(({ to }) => to)).toEqual(["/people"]);
  expect(commands("roles", [], "member")).toEqual([]);
  expect(commands("cost", [], "operator").map(({ to }) => to)).toEqual(["/usage"]);
  expect(new Set(GO.map(({ key: letter }) => letter)).size).toBe(GO.length);
});
