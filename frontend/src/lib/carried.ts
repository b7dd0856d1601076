/** A time range that goes along from page to page: each page has its own words for it in the address. Pure. */

interface Span {
  from: number;
  to: number;
}

/** Pages that show a range, and how they write it. */
const PAGES: Record<string, "window" | "bounds" | "around"> = { "/": "window", "/requests": "bounds", "/events": "around" };

/** Pages of objects show a range as well; no link of the header leads to one. */
const OBJECTS = /^\/(pools|backends|keys|models|users|tenants)\/./;
const kindOf = (pathname: string) => PAGES[pathname] ?? (OBJECTS.test(pathname) ? "bounds" : undefined);

/** The fixed range in an address; none while it follows the present. */
export function spanOf(pathname: string, query: URLSearchParams): Span | null {
  const kind = kindOf(pathname);
  const at = Number(query.get("at"));
  if (kind === "window" && at > 0) {
    const minutes = Number(query.get("window"));
    return { from: at - (minutes >= 1 ? minutes : 5) * 60, to: at };
  }
  if (kind === "around" && at > 0) return { from: at - 900, to: at + 900 };
  const [from, to] = [Date.parse(query.get("from") ?? ""), Date.parse(query.get("to") ?? "")];
  return kind === "bounds" && from < to ? { from: from / 1000, to: to / 1000 } : null;
}

/** The address of a page with the same range, where the page can show one. */
export function carried(path: string, span: Span | null): string {
  const kind = PAGES[path];
  if (!span || !kind) return path;
  const query: Record<string, string> =
    kind === "window"
      ? { at: String(Math.round(span.to)), window: String(Math.max(1, Math.min(10_080, Math.ceil((span.to - span.from) / 60)))) }
      : kind === "around"
        ? { at: String(Math.round((span.from + span.to) / 2)) }
        : { from: new Date(span.from * 1000).toISOString(), to: new Date(span.to * 1000).toISOString() };
  return `${path}?${new URLSearchParams(query)}`;
}

/** The address without its range. */
export function withoutSpan(pathname: string, query: URLSearchParams): string {
  const left = new URLSearchParams(query);
  for (const name of ["at", "from", "to"]) left.delete(name);
  return left.size ? `${pathname}?${left}` : pathname;
}
