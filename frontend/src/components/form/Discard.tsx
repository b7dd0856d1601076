import { useEffect, useRef, useState, type ReactNode } from "react";
import { useBlocker } from "react-router";
import { Modal } from "../Sheet";

/** Asked before something that was typed is dropped. */
export function Discard({ onKeep, onDrop }: { onKeep: () => void; onDrop: () => void }) {
  return (
    <Modal title="Discard your changes?" onClose={onKeep}>
      <p className="mt-2 text-sm text-soft">The changes in this form are not saved.</p>
      <div className="mt-4 flex justify-end gap-2">
        <button type="button" className="button h-9" data-autofocus onClick={onKeep}>
          Keep editing
        </button>
        <button type="button" className="button-danger" onClick={onDrop}>
          Discard
        </button>
      </div>
    </Modal>
  );
}

/** Neither a link, nor back, nor a reload loses what `unsaved` says is there without asking. Gives the question while it is asked. */
export function useLeaveGuard(unsaved: () => boolean): ReactNode {
  const latest = useRef(unsaved);
  latest.current = unsaved;
  const blocker = useBlocker(() => latest.current());
  useEffect(() => {
    const warn = (event: BeforeUnloadEvent) => {
      if (latest.current()) event.preventDefault();
    };
    addEventListener("beforeunload", warn);
    return () => removeEventListener("beforeunload", warn);
  }, []);
  return blocker.state === "blocked" ? <Discard onKeep={() => blocker.reset()} onDrop={() => blocker.proceed()} /> : null;
}

interface Draft {
  /** To be called with each change of a field. */
  touch: () => void;
  /** In place of `onClose`: asks first where something was changed. */
  close: () => void;
  /** It was saved: nothing would be lost any more. */
  saved: () => void;
  question: ReactNode;
}

/** A form that is no list of fields: neither Escape, a click beside it nor leaving the page loses it without asking. */
export function useDraft(onClose: () => void): Draft {
  const touched = useRef(false);
  const [asked, setAsked] = useState(false);
  const leaving = useLeaveGuard(() => touched.current);
  const saved = () => {
    touched.current = false;
  };
  return {
    touch: () => {
      touched.current = true;
    },
    close: () => (touched.current ? setAsked(true) : onClose()),
    saved,
    question:
      leaving ??
      (asked ? (
        <Discard
          onKeep={() => setAsked(false)}
          onDrop={() => {
            saved();
            onClose();
          }}
        />
      ) : null),
  };
}
