import { Link, Outlet, useLocation } from "react-router";
import { pages, within } from "../../components/navigation";
import { Notices } from "../../components/Notices";
import { user } from "../../lib/page";
import { useCurrentInView } from "../../lib/useCurrentInView";

/** The catalog's pages for this role. */
const sections = [...pages.filter((page) => page.path === "/tenants"), ...within].filter((page) => user.role !== null && ("row" in page ? page.row : page.roles)?.includes(user.role));

const current = (path: string, pathname: string): boolean =>
  pathname === path || pathname.startsWith(`${path}/`);

/** The second row of navigation over the catalog, and what was just done. */
export function Catalog() {
  const { pathname } = useLocation();
  const list = useCurrentInView<HTMLElement>(pathname);
  return (
    <>
      <nav ref={list} aria-label="Configuration" className="relative -mx-4 -mt-1 print:hidden mb-4 flex [scrollbar-width:none] gap-x-1 overflow-x-auto border-b border-line px-4 sm:-mx-6 sm:px-6">
        {sections.map(({ path, label }) => (
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
