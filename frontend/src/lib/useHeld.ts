import { useRef } from "react";

/**
 * The row whose form is open, by the key that stands in the address. Who else deletes it meanwhile takes it out of the
 * list, and not out of the form: what was typed over it is somebody's work.
 */
export function useHeld<T>(key: string | null, rows: readonly T[] | undefined, keyOf: (row: T) => string): T | undefined {
  const held = useRef<T | undefined>(undefined);
  const found = key === null ? undefined : rows?.find((row) => keyOf(row) === key);
  if (key === null || (held.current !== undefined && keyOf(held.current) !== key)) held.current = undefined;
  held.current = found ?? held.current;
  return held.current;
}
