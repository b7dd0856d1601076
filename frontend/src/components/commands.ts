/** What the command palette offers: pages, objects that the server found, and what can be done with them. Pure. */

import type { components } from "../api/schema";
import type { Role } from "../lib/page";
import { offered, within } from "./navigation";

export type Found = components["schemas"]["Found"];

export interface Command {
  id: string;
  section: "Pages" | "Objects" | "Actions";
  label: string;
  /** What it is, beside the label. */
  hint: string;
  /** Where it leads; or what it does here. */
  to?: string;
  act?: { kind: "pause" | "resume" | "drain" | "undrain"; name: string } | "theme" | "zone" | "shortcuts" | "logout";
}

const has = (label: string, text: string): boolean => text.split(/\s+/).every((word) => label.toLowerCase().includes(word.toLowerCase()));

/** A key is looked for by its public part: what stands after the dot never leaves this window. */
export const publicPart = (text: string): string => (/^qm-?[\w-]*\./.test(text.trim()) ? text.trim().split(".")[0]! : text.trim());

function objects(found: readonly Found[]): Command[] {
  return found.map((row): Command => {
    const shown = { id: `${row.kind} ${row.id}`, section: "Objects", label: row.label, hint: [row.kind, row.kind === "tenant" ? "" : row.tenant, row.state].filter(Boolean).join(", ") } as const;
    switch (row.kind) {
      case "tenant":
        return { ...shown, to: `/tenants/${row.id}` };
      case "entitlement":
        return { ...shown, to: `/tenants/${row.tenant}` };
      case "project":
        return { ...shown, to: `/tenants/${row.tenant}/projects` };
      case "key":
        return { ...shown, to: `/keys/${encodeURIComponent(row.id)}` };
      case "pool":
        return { ...shown, to: `/pools/${encodeURIComponent(row.id)}` };
      case "backend":
        return { ...shown, to: `/backends/${encodeURIComponent(row.id)}` };
      case "request":
        return { ...shown, to: `/requests?request=${encodeURIComponent(row.id)}` };
      default:
        return { ...shown, to: `/alerts/${row.id}` };
    }
  });
}

function actionsOf(found: readonly Found[], role: Role): Command[] {
  const staff = role !== "member";
  return found.flatMap((row): Command[] => {
    const action = (label: string, more: Pick<Command, "to" | "act">): Command => ({ id: `${label} ${row.kind} ${row.id}`, section: "Actions", label, hint: row.kind, ...more });
    if (row.kind === "tenant")
      return [
        action(`Requests of ${row.id}`, { to: `/requests?tenant=${row.id}` }),
        action(`Cost of ${row.id} this month`, { to: `/tenants/${row.id}/usage?range=month` }),
        ...(staff ? [action(`Which tenants ${row.id} waited for`, { to: `/tenants/${row.id}/neighbours` }), action(row.state === "paused" ? `Resume ${row.id}` : `Pause ${row.id}`, { act: { kind: row.state === "paused" ? "resume" : "pause", name: row.id } })] : []),
      ];
    if (row.kind === "key") return [action(`Requests of key qm-${row.id}`, { to: `/requests?key_id=${row.id}` }), action(`Rotate or revoke key qm-${row.id}`, { to: `/tenants/${row.tenant}/keys` })];
    if (row.kind === "backend" && staff)
      return [
        action(`Requests of ${row.id}`, { to: `/requests?backend=${encodeURIComponent(row.id)}` }),
        action(row.state === "draining" ? `Return ${row.id} to service` : `Drain ${row.id}`, { act: { kind: row.state === "draining" ? "undrain" : "drain", name: row.id } }),
      ];
    if (row.kind === "pool") return [action(`Queue of ${row.id}`, { to: `/queue?pool=${encodeURIComponent(row.id)}` }), ...(staff ? [action(`Change the policy of ${row.id}`, { to: `/policies?pool=${encodeURIComponent(row.id)}` })] : [])];
    return [];
  });
}

const GENERAL: readonly (Command & { roles?: readonly Role[] })[] = [
  { id: "new-tenant", section: "Actions", label: "Add a tenant", hint: "tenant", to: "/tenants?new=tenant", roles: ["admin"] },
  { id: "new-rule", section: "Actions", label: "Add an alert rule", hint: "alerts", to: "/alerts?rule=new", roles: ["admin"] },
  { id: "new-run", section: "Actions", label: "New lab run", hint: "lab", to: "/lab?new=1", roles: ["admin", "operator"] },
  { id: "slow", section: "Actions", label: "Requests that waited longer than 8 s", hint: "requests", to: "/requests?waited_over=8&order=waited" },
  { id: "theme", section: "Actions", label: "Switch colours", hint: "light, dark, system", act: "theme" },
  { id: "zone", section: "Actions", label: "Switch time zone", hint: "the browser's, UTC", act: "zone" },
  { id: "shortcuts", section: "Actions", label: "Keyboard shortcuts", hint: "help", act: "shortcuts" },
  { id: "logout", section: "Actions", label: "Log out", hint: "", act: "logout" },
];

/** Everything that fits what was typed, in the order in which it is shown. */
export function commands(text: string, found: readonly Found[], role: Role | null): Command[] {
  if (role === null) return [];
  const typed = text.trim();
  const pages = [...offered(role), ...within.filter((page) => page.roles.includes(role)).map(({ path, label, found: long }) => ({ path, label: long ?? label }))];
  const general = GENERAL.filter((one) => (!one.roles || one.roles.includes(role)) && has(one.label, typed));
  return [
    ...objects(found),
    ...pages.filter((page) => has(page.label, typed)).map((page): Command => ({ id: `page ${page.path}`, section: "Pages", label: page.label, hint: page.path, to: page.path })),
    ...actionsOf(found, role),
    ...general,
  ];
}

/** Two keys one after the other: "g", then a letter. */
export const GO: readonly { key: string; path: string; label: string }[] = [
  { key: "o", path: "/", label: "Overview" },
  { key: "q", path: "/queue", label: "Queue" },
  { key: "a", path: "/alerts", label: "Alerts" },
  { key: "r", path: "/requests", label: "Requests" },
  { key: "e", path: "/events", label: "Events" },
  { key: "t", path: "/tenants", label: "Tenants" },
  { key: "p", path: "/policies", label: "Policies" },
  { key: "l", path: "/lab", label: "Lab" },
];
