import type { KeyboardEvent } from "react";

/**
 * Keeps a key that is held down from answering a dialog: the Enter that opened it repeats itself after half a second,
 * into the dialog's first field, and would send its form.
 */
export function ignoreHeldEnter(event: KeyboardEvent): void {
  if (event.key === "Enter" && event.repeat && !(event.target instanceof HTMLTextAreaElement)) event.preventDefault();
}
