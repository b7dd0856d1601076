/** Light, dark, or as the system says. Kept in a cookie, so that Django renders the first byte in the right colours. */

import { useSyncExternalStore } from "react";

export type Theme = "auto" | "light" | "dark";

const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();
const tell = () => listeners.forEach((listener) => listener());
system.addEventListener("change", tell);

const read = (): Theme => {
  const set = document.documentElement.dataset.theme;
  return set === "light" || set === "dark" ? set : "auto";
};

export function setTheme(theme: Theme): void {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const age = theme === "auto" ? 0 : 365 * 24 * 3600;
  // biome-ignore lint/suspicious/noDocumentCookie: the CookieStore API is asynchronous, and newer than the browsers served
  document.cookie = `qm_theme=${theme}; path=/; max-age=${age}; samesite=lax`;
  tell();
}

const subscribe = (listener: () => void) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

export const useTheme = (): Theme => useSyncExternalStore(subscribe, read);

/** What is on the screen in the end. */
export const useDark = (): boolean =>
  useSyncExternalStore(subscribe, () => (read() === "auto" ? system.matches : read() === "dark"));
