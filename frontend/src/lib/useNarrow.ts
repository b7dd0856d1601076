/** Whether there is room for columns: not where app.css makes cards of a table's rows. */

import { useSyncExternalStore } from "react";

const narrow = matchMedia("(width < 40rem)");

const subscribe = (listener: () => void) => {
  narrow.addEventListener("change", listener);
  return () => narrow.removeEventListener("change", listener);
};

export const useNarrow = (): boolean => useSyncExternalStore(subscribe, () => narrow.matches);
