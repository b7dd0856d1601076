/** The one time zone in which every page shows times: the browser's, or UTC. Kept in a cookie; a change loads the page anew. */

type ZoneChoice = "local" | "utc";

const NAME = "qm_zone";
const text = typeof document === "undefined" ? "" : document.cookie;

export const zoneChoice: ZoneChoice = /(?:^|;\s*)qm_zone=utc(?:;|$)/.test(text) ? "utc" : "local";

/** For Intl: undefined is the browser's own. */
export const timeZone: string | undefined = zoneChoice === "utc" ? "UTC" : undefined;

export function setZone(choice: ZoneChoice): void {
  const age = choice === "utc" ? 365 * 24 * 3600 : 0;
  // biome-ignore lint/suspicious/noDocumentCookie: the CookieStore API is asynchronous, and newer than the browsers served
  document.cookie = `${NAME}=${choice}; path=/; max-age=${age}; samesite=lax`;
  location.reload();
}
