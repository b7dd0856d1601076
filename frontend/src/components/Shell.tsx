import { useQueryClient } from "@tanstack/react-query";
import { Suspense, useEffect, useRef, type ReactNode } from "react";
import { Link, Outlet, useLocation } from "react-router";
import { useOutages } from "../feed/live";
import { setTheme, useTheme, type Theme } from "../lib/theme";
import { carried, spanOf, withoutSpan } from "../lib/carried";
import { day, minute, moment, zone } from "../lib/format";
import { user } from "../lib/page";
import { session } from "../lib/session";
import { setZone, zoneChoice } from "../lib/zone";
import { useCurrentInView } from "../lib/useCurrentInView";
import { AlertBadge } from "./AlertBadge";
import { Icon, Mark } from "./icons";
import { Outages } from "./Outages";
import { Keyboard } from "./Keyboard";
import { SignedOut } from "./SignedOut";
import { GROUPS, isCurrent, offered } from "./navigation";
import { StandingsNow } from "../pages/tenants/StandingsNow";
import { VerdictStrip } from "./VerdictStrip";

const themes: Record<Theme, { next: Theme; icon: "auto" | "sun" | "moon"; label: string }> = {
  auto: { next: "light", icon: "auto", label: "Colours: system. Switch to light" },
  light: { next: "dark", icon: "sun", label: "Colours: light. Switch to dark" },
  dark: { next: "auto", icon: "moon", label: "Colours: dark. Switch to the system's" },
};

function ThemeButton() {
  const { next, icon, label } = themes[useTheme()];
  return (
    <button type="button" className="button w-8 px-0" aria-label={label} title={label} onClick={() => setTheme(next)}>
      <Icon name={icon} />
    </button>
  );
}

const tab = "inline-flex h-8 shrink-0 items-center gap-1 rounded-md px-2.5 text-sm whitespace-nowrap text-soft hover:text-ink aria-[current=page]:bg-raised aria-[current=page]:font-medium aria-[current=page]:text-ink";

/** The pages this role can use. Where they do not fit they scroll, and the current one is brought into view. */
function Navigation({ pathname }: { pathname: string }) {
  const { search } = useLocation();
  const span = spanOf(pathname, new URLSearchParams(search));
  const items = offered(user.role);
  const list = useCurrentInView<HTMLElement>(pathname);
  return (
    <nav
      ref={list}
      aria-label="Pages"
      className="relative order-3 -mx-4 flex w-screen max-w-[calc(100%+2rem)] [scrollbar-width:none] gap-x-0.5 overflow-x-auto px-1.5 py-0.5 sm:-mx-6 sm:max-w-[calc(100%+3rem)] sm:px-3.5 xl:order-2 xl:mx-0 xl:w-auto xl:max-w-none xl:min-w-0 xl:flex-1 xl:px-0.5"
    >
      {GROUPS.map((group) => (
        <div key={group} role="group" aria-label={group} className="flex shrink-0 gap-x-0.5 not-first:ml-1.5 not-first:border-l not-first:border-line not-first:pl-1.5 empty:hidden">
          {items.filter((item) => item.group === group).map((item) => (
        <Link key={item.path} to={carried(item.path, span)} className={tab} aria-current={isCurrent(item, pathname) ? "page" : undefined}>
          {item.label}
          {item.path === "/alerts" && <AlertBadge />}
        </Link>
          ))}
        </div>
      ))}
      {user.staff && (
        <a href="/admin/" className={tab}>
          Back office
          <Icon name="out" />
        </a>
      )}
      <a href="/api/v1/docs" className={tab}>
        API
        <Icon name="out" />
      </a>
    </nav>
  );
}

/** What could not be read, or was read while something was away, is read again when it is back. */
function useRecovery(): void {
  const client = useQueryClient();
  const outages = useOutages();
  const away = outages.length > 0;
  const before = useRef(away);
  useEffect(() => {
    if (before.current && !away) void client.invalidateQueries();
    before.current = away;
  }, [away, client]);
}

/** The zone of every time on the page. */
function ZoneButton() {
  const utc = zoneChoice === "utc";
  const text = `Times are in ${zone()}${utc ? "" : ", the zone of this browser"}. Switch to ${utc ? "the zone of this browser" : "UTC"}`;
  return (
    <button type="button" className="button hidden sm:inline-flex" aria-label={text} title={text} onClick={() => setZone(utc ? "local" : "utc")}>
      {zone()}
    </button>
  );
}

/** A fixed range goes along from page to page until it is left. */
function Range({ pathname }: { pathname: string }) {
  const { search } = useLocation();
  const query = new URLSearchParams(search);
  const span = spanOf(pathname, query);
  if (!span) return null;
  return (
    <Link className="button gap-1 whitespace-nowrap" to={withoutSpan(pathname, query)} title={`${moment(span.from)} to ${moment(span.to)}: kept from page to page. Back to now`}>
      {day(span.from)}, {minute(span.from)}–{minute(span.to)}
      <Icon name="close" />
    </Link>
  );
}

/** Header, navigation and the place for a page. */
export function Shell() {
  const { pathname } = useLocation();
  useRecovery();
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  // biome-ignore lint/correctness/useExhaustiveDependencies: it is done for each page
  useEffect(() => session.turned, [pathname]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: it is done for each page
  useEffect(() => {
    // A new page is announced from its beginning, unless it has put the focus where one begins to type.
    if (!first.current && !main.current?.contains(document.activeElement)) main.current?.focus({ preventScroll: true });
    first.current = false;
  }, [pathname]);
  return (
    <StandingsNow>
      <a href="#main" className="button sr-only z-50 focus:not-sr-only focus:fixed focus:top-2 focus:left-2">
        Skip to content
      </a>
      <header className="sticky top-0 z-20 border-b border-line bg-panel print:hidden">
        <div className="mx-auto flex min-h-12 max-w-[160rem] flex-wrap items-center gap-x-4 gap-y-1 px-4 py-1.5 sm:px-6">
          <Link to="/" className="flex items-center gap-2 font-semibold tracking-tight text-ink">
            <Mark />
            Quartermaster
          </Link>
          <div className="order-2 ml-auto flex items-center gap-2 xl:order-3">
            <Range pathname={pathname} />
            <Keyboard />
            <ZoneButton />
            <ThemeButton />
            <span className="hidden max-w-40 truncate text-sm text-soft md:inline" title={user.role ? `Logged in as ${user.role}` : "Logged in"}>
              {user.name}
            </span>
            <button type="submit" form="logout" className="button">
              Log out
            </button>
          </div>
          <Navigation pathname={pathname} />
        </div>
        <VerdictStrip />
      </header>
      <main id="main" ref={main} tabIndex={-1} className="mx-auto max-w-[160rem] px-4 py-4 outline-none sm:px-6">
        <Outages />
        <Suspense fallback={<div className="skeleton h-64" role="status" aria-label="Loading" />}>
          <Outlet />
        </Suspense>
      </main>
      <SignedOut />
    </StandingsNow>
  );
}

/** A large friendly box where there is nothing to list. */
export function Empty({ title, children }: { title: string; children: ReactNode }) {
  return (
    <div className="panel mx-auto my-12 max-w-xl p-8">
      <h2 className="text-base font-semibold">{title}</h2>
      <div className="mt-2 space-y-3 text-sm text-soft">{children}</div>
    </div>
  );
}
