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

/** Says over the header that something was done; spoken, and gone by itself. Errors belong beside what caused them. */
export function notify(text: string): void {
  set([{ id: next++, text }]);
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
  // Over the header, which stays where it is: one notice, of two lines at most, hides no row of a page.
  return (
    <div role="status" className="pointer-events-none fixed inset-x-3 top-1.5 z-40 flex justify-center">
      {list.map((notice) => (
        <p key={notice.id} className="line-clamp-2 max-w-xl rounded-lg border border-edge bg-panel px-4 py-1.5 text-sm text-ink shadow-lg">
          {notice.text}
        </p>
      ))}
    </div>
  );
}
