import { Link, Outlet, useLocation } from "react-router";
import { Notices } from "../../components/Notices";
import { user, type Role } from "../../lib/page";
import { useCurrentInView } from "../../lib/useCurrentInView";

const everyone: readonly Role[] = ["admin", "operator", "member"];
const staff: readonly Role[] = ["admin", "operator"];

/** the catalog's pages; who may not read one is not offered it. */
const sections: readonly { path: string; label: string; roles: readonly Role[] }[] = [
  { path: "/tenants", label: "Tenants", roles: everyone },
  { path: "/me", label: "My access", roles: ["member"] },
  { path: "/usage", label: "Usage", roles: everyone },
  { path: "/pools", label: "Pools", roles: everyone },
  { path: "/backends", label: "Backends", roles: staff },
  { path: "/adapters", label: "Adapters", roles: everyone },
  { path: "/tiers", label: "Tiers", roles: everyone },
  { path: "/slos", label: "SLOs", roles: everyone },
  { path: "/prices", label: "Prices", roles: everyone },
  { path: "/people", label: "People", roles: everyone },
  { path: "/roles", label: "Roles", roles: staff },
  { path: "/audit", label: "Audit", roles: everyone },
];

const current = (path: string, pathname: string): boolean =>
  pathname === path || pathname.startsWith(`${path}/`);

/** The second row of navigation over the catalog, and what was just done. */
export function Catalog() {
  const { pathname } = useLocation();
  const list = useCurrentInView<HTMLElement>(pathname);
  return (
    <>
      <nav ref={list} aria-label="Configuration" className="relative -mx-4 -mt-1 mb-4 flex [scrollbar-width:none] gap-x-1 overflow-x-auto border-b border-line px-4 sm:-mx-6 sm:px-6">
        {sections
          .filter((section) => user.role !== null && section.roles.includes(user.role))
          .map(({ path, label }) => (
            <Link
              key={path}
              to={path}
              aria-current={current(path, pathname) ? "page" : undefined}
              className="-mb-px inline-flex h-9 shrink-0 items-center border-b-2 border-transparent px-2 text-sm whitespace-nowrap text-soft hover:text-ink aria-[current=page]:border-accent aria-[current=page]:font-medium aria-[current=page]:text-ink"
            >
              {label}
            </Link>
          ))}
      </nav>
      <Outlet />
      <Notices />
    </>
  );
}
