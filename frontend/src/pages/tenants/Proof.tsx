import { useState } from "react";
import type { SecondFactor as Row } from "../../api/catalog";
import { send } from "../../api/client";
import { usePasskey as signByPasskey } from "../../lib/passkeys";

/** What shows that it is really you: the password, or once there is a second factor, a code or a passkey. */
export interface Proof {
  password?: string;
  code?: string;
  passkey?: unknown;
}

export function Field({ label, value, onChange, password, free }: { label: string; value: string; onChange: (text: string) => void; password?: boolean; free?: number }) {
  return (
    <label className="block">
      <span className="mb-1 block text-sm font-medium text-ink">{label}</span>
      <input
        className={`field w-full ${password || free ? "" : "font-mono"}`}
        type={password ? "password" : "text"}
        inputMode={password || free ? undefined : "numeric"}
        autoComplete={free ? "off" : password ? "current-password" : "one-time-code"}
        maxLength={free ?? (password ? 200 : 32)}
        data-autofocus
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
    </label>
  );
}

/** Asks for it. A passkey's answer works once, so it is asked for at the press of its button. */
export function ProofFields({ row, proof, onProof }: { row: Row; proof: Proof; onProof: (proof: Proof) => void }) {
  const [failed, setFailed] = useState("");
  const [asking, setAsking] = useState(false);
  if (!row.enabled) return <Field label="Password" password value={proof.password ?? ""} onChange={(password) => onProof({ password })} />;
  const ask = async () => {
    setAsking(true);
    setFailed("");
    try {
      const { options } = await send<{ options: unknown }>("POST", "second-factor/challenge");
      onProof({ passkey: await signByPasskey(options) });
    } catch (error) {
      setFailed(error instanceof Error ? error.message : String(error));
    } finally {
      setAsking(false);
    }
  };
  return (
    <>
      <Field label={row.app ? "Code of the app, or a recovery code" : "Recovery code"} value={proof.code ?? ""} onChange={(code) => onProof({ code })} />
      {row.passkeys.length > 0 && (
        <p className="flex flex-wrap items-center gap-2">
          <button type="button" className="button" disabled={asking} onClick={() => void ask()}>
            {asking ? "Waiting for the passkey…" : "Use a passkey instead"}
          </button>
          {proof.passkey !== undefined && <span role="status">A passkey has answered.</span>}
          {failed && (
            <span role="alert" className="text-bad">
              {failed}
            </span>
          )}
        </p>
      )}
    </>
  );
}
