import { useState, type ReactNode } from "react";
import { Modal } from "../../components/Sheet";
import { ignoreHeldEnter } from "../../lib/heldEnter";

interface Props {
  title: string;
  /** The button's word: what will be done. */
  action: string;
  /** A line for the audit log is asked for. */
  reason?: boolean;
  run: (reason: string) => Promise<unknown>;
  onDone: () => void;
  onClose: () => void;
  children: ReactNode;
}

/** Asks before something is done that others will feel. */
export function Confirm({ title, action, reason, run, onDone, onClose, children }: Props) {
  const [why, setWhy] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const go = () => {
    if (busy) return;
    setBusy(true);
    setProblem("");
    run(why.trim()).then(onDone, (error: Error) => {
      setProblem(error.message);
      setBusy(false);
    });
  };
  return (
    <Modal title={title} onClose={onClose}>
      <form
        onKeyDown={ignoreHeldEnter}
        onSubmit={(event) => {
          event.preventDefault();
          go();
        }}
      >
        <div className="mt-2 space-y-2 text-sm text-soft">{children}</div>
        {reason && (
          <label className="mt-3 flex flex-col gap-1">
            <span className="label">Reason, for the audit log</span>
            <input className="field" maxLength={200} value={why} onChange={(event) => setWhy(event.target.value)} data-autofocus />
          </label>
        )}
        {problem && (
          <p role="alert" className="mt-3 rounded-md bg-bad-bg px-3 py-2 text-sm text-bad">
            {problem}
          </p>
        )}
        <div className="mt-4 flex justify-end gap-2">
          <button type="button" className="button h-9" onClick={onClose} data-autofocus={reason ? undefined : true}>
            Go back
          </button>
          <button type="submit" className="button-danger" aria-disabled={busy}>
            {action}
          </button>
        </div>
      </form>
    </Modal>
  );
}
