import { useId, useLayoutEffect, useRef, type ReactNode } from "react";
import { Icon } from "./icons";

interface Props {
  title: string;
  subtitle?: string;
  /** Asked for by Escape, the cross and a click beside it; the owner decides. */
  onClose: () => void;
  wide?: boolean;
  /** A field in it was changed. */
  onTyped?: () => void;
  children: ReactNode;
}

/** A dialog that is open as long as it is mounted, with the focus on what asks for it. */
function useModal() {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const element = dialog.current!;
    if (!element.open) element.showModal();
    element.querySelector<HTMLElement>("[data-autofocus]")?.focus();
    return () => element.close();
  }, []);
  return dialog;
}

/** A dialog along the right edge; the whole screen on a phone. */
export function Sheet({ title, subtitle, onClose, wide, onTyped, children }: Props) {
  const dialog = useModal();
  const id = useId();
  return (
    <dialog
      ref={dialog}
      aria-labelledby={id}
      onInput={onTyped}
      onKeyDown={(event) => {
        if (event.key !== "Escape" || event.defaultPrevented) return;
        event.preventDefault(); // the browser would close it whatever the owner says
        event.stopPropagation();
        onClose();
      }}
      onCancel={(event) => {
        if (event.target !== dialog.current) return;
        event.preventDefault();
        onClose();
      }}
      onMouseDown={(event) => {
        if (event.target === dialog.current) onClose();
      }}
      className={`m-0 ml-auto h-dvh max-h-none w-full overflow-hidden border-l border-line bg-panel text-ink backdrop:bg-black/45 ${wide ? "max-w-[60rem]" : "max-w-[40rem]"}`}
    >
      <div className="flex h-full flex-col">
        <div className="flex items-start justify-between gap-3 border-b border-line px-5 py-3.5">
          <div className="min-w-0">
            <h2 id={id} className="text-base font-semibold">
              {title}
            </h2>
            {subtitle && <p className="mt-0.5 text-sm text-soft">{subtitle}</p>}
          </div>
          <button type="button" className="button w-8 shrink-0 px-0" aria-label="Close" onClick={onClose}>
            <Icon name="close" />
          </button>
        </div>
        {children}
      </div>
    </dialog>
  );
}

/** A question over the page. Its buttons are the children's. */
export function Modal({ title, onClose, children, wide }: { title: string; onClose: () => void; children: ReactNode; wide?: boolean }) {
  const dialog = useModal();
  const id = useId();
  return (
    <dialog
      ref={dialog}
      aria-labelledby={id}
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.preventDefault();
        event.stopPropagation();
        onClose();
      }}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      className={`m-auto max-h-[calc(100dvh-2rem)] w-[calc(100vw-2rem)] overflow-y-auto rounded-lg border border-line bg-panel p-5 text-ink shadow-xl backdrop:bg-black/45 ${wide ? "max-w-[40rem]" : "max-w-[30rem]"}`}
    >
      <h2 id={id} className="text-base font-semibold">
        {title}
      </h2>
      {children}
    </dialog>
  );
}
