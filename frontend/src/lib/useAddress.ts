import { useCallback } from "react";
import { type SetURLSearchParams, useSearchParams } from "react-router";

/**
 * The query of the address and its setter: `useSearchParams`, but a change is on screen before the browser paints.
 * By default the router renders it as a transition, which a busy page puts off: a box that was ticked jumps back
 * until then, and a second change starts from the old address and undoes the first.
 */
export function useAddress(): [URLSearchParams, SetURLSearchParams] {
  const [query, setQuery] = useSearchParams();
  const change = useCallback<SetURLSearchParams>((next, options) => setQuery(next, { ...options, flushSync: true }), [setQuery]);
  return [query, change];
}
