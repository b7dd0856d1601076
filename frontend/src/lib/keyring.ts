/** Keys that were made or pasted in this window. In memory only: a reload forgets them, and nothing is ever stored. */

import { useSyncExternalStore } from "react";

interface HeldKey {
  secret: string;
  /** The public part: "qm-a1B2c3D4e5F6". */
  id: string;
  label: string;
}

let held: readonly HeldKey[] = [];
const listeners = new Set<() => void>();

export const publicId = (secret: string): string => secret.split(".")[0] ?? "";

/** The newest stands first; the same key is held once. */
export function hold(secret: string, label = ""): void {
  const id = publicId(secret);
  const known = held.find((key) => key.secret === secret);
  held = [{ secret, id, label: label || known?.label || "" }, ...held.filter((key) => key.secret !== secret)];
  listeners.forEach((listener) => listener());
}

const subscribe = (listener: () => void) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

export const useKeyring = (): readonly HeldKey[] => useSyncExternalStore(subscribe, () => held);
