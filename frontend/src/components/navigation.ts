/** The console's pages, in the order of the header. A page that a role cannot use is not offered to it. */

import type { Role } from "../lib/page";

/** What a page is for: seeing now, looking back, changing what serves, or who may. */
export const GROUPS = ["Now", "Investigate", "Capacity", "Tenants"] as const;
type NavigationGroup = (typeof GROUPS)[number];

interface Item {
  path: string;
  label: string;
  roles: readonly Role[];
  group: NavigationGroup;
  /** Addresses beside its own that belong to it. */
  also?: readonly string[];
}

interface Within extends Pick<Item, "path" | "label" | "roles"> {
  /** What the palette calls it, if that is more than its label. */
  found?: string;
  /** Who is offered it beside the others in the row of the catalog, if not all of its roles. */
  row?: readonly Role[];
}

const everyone: readonly Role[] = ["admin", "operator", "member"];
const staff: readonly Role[] = ["admin", "operator"];

/** Pages within others, in the order of the catalog's row; the palette has them as well. */
export const within: readonly Within[] = [
  { path: "/me", label: "My access", roles: everyone, row: ["member"] },
  { path: "/usage", label: "Usage", roles: everyone, found: "Usage and cost" },
  { path: "/pools", label: "Pools", roles: everyone },
  { path: "/backends", label: "Backends", roles: staff },
  { path: "/adapters", label: "Adapters", roles: everyone },
  { path: "/tiers", label: "Tiers", roles: everyone },
  { path: "/slos", label: "SLOs", roles: everyone },
  { path: "/prices", label: "Prices", roles: everyone },
  { path: "/people", label: "People", roles: everyone },
  { path: "/roles", label: "Roles", roles: staff },
  { path: "/audit", label: "Audit", roles: everyone, found: "Audit log" },
];

export const pages: readonly Item[] = [
  { path: "/", label: "Overview", roles: everyone, group: "Now" },
  { path: "/queue", label: "Queue", roles: everyone, group: "Now" },
  { path: "/alerts", label: "Alerts", roles: everyone, group: "Now" },
  { path: "/requests", label: "Requests", roles: everyone, group: "Investigate", also: ["/moment"] },
  { path: "/events", label: "Events", roles: staff, group: "Investigate" },
  { path: "/drift", label: "Drift", roles: everyone, group: "Investigate" },
  { path: "/playground", label: "Playground", roles: everyone, group: "Investigate" },
  { path: "/policies", label: "Policies", roles: staff, group: "Capacity" },
  { path: "/lab", label: "Lab", roles: staff, group: "Capacity" },
  { path: "/tenants", label: "Tenants", roles: everyone, group: "Tenants", also: [...within.map((page) => page.path), "/keys", "/models", "/users"] },
];

/** What someone is offered; without a role there is nothing but the overview, which says so. */
export const offered = (role: Role | null): readonly Item[] => pages.filter((page) => (role === null ? page.path === "/" : page.roles.includes(role)));

const inside = (pathname: string, path: string): boolean => pathname === path || (path !== "/" && pathname.startsWith(`${path}/`));

/** Whether an address belongs to a page. */
export const isCurrent = (item: Item, pathname: string): boolean => [item.path, ...(item.also ?? [])].some((path) => inside(pathname, path));
