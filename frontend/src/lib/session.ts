/** Whether the server still knows who is looking. Where something was typed the page stays, so that nothing of it is lost. */

import { toLogin } from "./page";

let typed = false; // on this page, since it was opened
let ended = false;
const listeners = new Set<() => void>();

if (typeof document !== "undefined") document.addEventListener("input", () => (typed = true), true);

const tell = (now: boolean): void => {
  ended = now;
  for (const listener of listeners) listener();
};

export const session = {
  subscribe: (listener: () => void): (() => void) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
  /** Somebody has to log in again and has typed something here. */
  hasEnded: (): boolean => ended,
  hasTyped: (): boolean => typed,
  /** Another page was opened: what was typed on the one before it is gone or saved. */
  turned: (): void => {
    typed = false;
  },
  /** The server no longer knows who asks. */
  end: (): void => {
    if (!typed) toLogin();
    else if (!ended) tell(true);
  },
  /** Somebody has logged in again, with the name that this page was opened with. */
  back: (): void => {
    if (ended) tell(false);
  },
};

const meta = (name: string): string => (typeof document === "undefined" ? "" : (document.querySelector<HTMLMetaElement>(`meta[name=${name}]`)?.content ?? ""));

/** The token that a write needs. A login in another tab makes a new one, so it is read from the cookie each time. */
export const writeToken = (): string => {
  const name = meta("csrf-cookie");
  const found = name ? document.cookie.split("; ").find((cookie) => cookie.startsWith(`${name}=`)) : undefined;
  return found?.slice(name.length + 1) || meta("csrf-token");
};
