/** The console's pages, in the order of the header. A page that a role cannot use is not offered to it. */

import type { Role } from "../lib/page";

export interface Item {
  path: string;
  label: string;
  roles: readonly Role[];
  /** Addresses beside its own that belong to it. */
  also?: readonly string[];
}

const everyone: readonly Role[] = ["admin", "operator", "member"];
const staff: readonly Role[] = ["admin", "operator"];

export const pages: readonly Item[] = [
  { path: "/", label: "Overview", roles: everyone },
  { path: "/queue", label: "Queue", roles: everyone },
  { path: "/requests", label: "Requests", roles: everyone, also: ["/moment"] },
  { path: "/tenants", label: "Tenants", roles: everyone, also: ["/usage", "/pools", "/backends", "/tiers", "/slos", "/prices", "/roles", "/audit"] },
  { path: "/policies", label: "Policies", roles: staff },
  { path: "/lab", label: "Lab", roles: staff },
  { path: "/drift", label: "Drift", roles: everyone },
  { path: "/alerts", label: "Alerts", roles: everyone, also: ["/events"] },
  { path: "/playground", label: "Playground", roles: everyone },
];

/** What someone is offered; without a role there is nothing but the overview, which says so. */
export const offered = (role: Role | null): readonly Item[] => pages.filter((page) => (role === null ? page.path === "/" : page.roles.includes(role)));

const within = (pathname: string, path: string): boolean => pathname === path || (path !== "/" && pathname.startsWith(`${path}/`));

/** Whether an address belongs to a page. */
export const isCurrent = (item: Item, pathname: string): boolean => [item.path, ...(item.also ?? [])].some((path) => within(pathname, path));
