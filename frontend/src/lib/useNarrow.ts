/** Whether there is room for columns: not where app.css makes cards of a table's rows. */

import { useSyncExternalStore } from "react";

let query: MediaQueryList | undefined;

/** Made when a page first asks: tests of what pages say have no window. */
const narrow = (): MediaQueryList => (query ??= matchMedia("(width < 40rem)"));

const subscribe = (listener: () => void) => {
  narrow().addEventListener("change", listener);
  return () => narrow().removeEventListener("change", listener);
};

export const useNarrow = (): boolean => useSyncExternalStore(subscribe, () => narrow().matches);
