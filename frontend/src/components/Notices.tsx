import { useEffect, useSyncExternalStore } from "react";

interface Notice {
  id: number;
  text: string;
}

let shown: readonly Notice[] = [];
let next = 1;
const listeners = new Set<() => void>();
const SHOWN_MS = 5000;

const set = (list: readonly Notice[]) => {
  shown = list;
  listeners.forEach((listener) => listener());
};

/** Says in the corner that something was done; spoken, and gone by itself. Errors belong beside what caused them. */
export function notify(text: string): void {
  set([...shown.slice(-2), { id: next++, text }]);
}

const subscribe = (listener: () => void) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

export function Notices() {
  const list = useSyncExternalStore(subscribe, () => shown);
  const oldest = list[0]?.id;
  useEffect(() => {
    if (oldest === undefined) return;
    const timer = setTimeout(() => set(shown.filter((notice) => notice.id !== oldest)), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [oldest]);
  // The page ends below the last notice, so that it can be scrolled out from under it.
  return (
    <>
    {list.length > 0 && <div aria-hidden="true" className="h-16" />}
    <div role="status" className="pointer-events-none fixed inset-x-3 bottom-3 z-40 flex flex-col items-center gap-2">
      {list.map((notice) => (
        <p key={notice.id} className="rounded-lg border border-edge bg-panel px-4 py-2 text-sm text-ink shadow-lg">
          {notice.text}
        </p>
      ))}
    </div>
    </>
  );
}
