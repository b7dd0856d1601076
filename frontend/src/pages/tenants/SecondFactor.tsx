import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import type { RecoveryCodes, SecondFactor as Row, SecondFactorOffer } from "../../api/catalog";
import { get, send } from "../../api/client";
import { CopyButton } from "../../components/Copy";
import { notify } from "../../components/Notices";
import { Modal } from "../../components/Sheet";
import { useRefresh } from "./data";
import { Confirm, Failed, Waiting, When } from "./parts";
import { Section } from "./PeopleParts";

type Step = { at: "proof"; again: boolean } | { at: "app"; offer: SecondFactorOffer } | { at: "codes" } | { at: "disable" } | { at: "saved"; codes: string[] };

function Field({ label, value, onChange, password }: { label: string; value: string; onChange: (text: string) => void; password?: boolean }) {
  return (
    <label className="block">
      <span className="mb-1 block text-sm font-medium text-ink">{label}</span>
      <input
        className={`field w-full ${password ? "" : "font-mono"}`}
        type={password ? "password" : "text"}
        inputMode={password ? undefined : "numeric"}
        autoComplete={password ? "current-password" : "one-time-code"}
        maxLength={password ? 200 : 32}
        data-autofocus
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
    </label>
  );
}

function Saved({ codes, onClose }: { codes: string[]; onClose: () => void }) {
  return (
    <Modal title="Save your recovery codes" onClose={onClose}>
      <p className="mt-2 text-sm text-soft">Each logs you in once without the device. They are shown only now.</p>
      <ul className="mt-3 grid grid-cols-2 gap-2 rounded-md border border-edge bg-page p-3 font-mono text-sm" data-testid="codes">
        {codes.map((code) => (
          <li key={code}>{code}</li>
        ))}
      </ul>
      <div className="mt-4 flex justify-end gap-2">
        <CopyButton text={codes.join("\n")} label="Copy" />
        <button type="button" className="button-primary" data-autofocus onClick={onClose}>
          I have saved them
        </button>
      </div>
    </Modal>
  );
}

function what(row: Row): ReactNode {
  if (!row.available) return "This account has no password here. Its identity provider decides on second factors.";
  if (!row.enabled) return row.mandatory ? "Required here: it is set up at the next login, or now." : "Off: your password alone is enough to log in.";
  return (
    <>
      On since <When at={row.since} />. Last code taken: {row.used_at ? <When at={row.used_at} /> : "none yet"}. {row.codes_left} recovery {row.codes_left === 1 ? "code" : "codes"} left.
    </>
  );
}

/** One's own second factor: set up, moved to another device, switched off. */
export function SecondFactor() {
  const { data: row, error, refetch } = useQuery({ queryKey: ["catalog", "second-factor"], queryFn: ({ signal }) => get<Row>("second-factor", {}, signal) });
  const refresh = useRefresh();
  const [step, setStep] = useState<Step | null>(null);
  const [typed, setTyped] = useState("");
  const go = (next: Step | null) => {
    setTyped("");
    setStep(next);
  };
  const close = () => go(null);
  const done = (codes: string[]) => {
    go({ at: "saved", codes });
    void refresh();
  };
  return (
    <Section id="second-factor" title="Your second factor" intro="A code from an authenticator app, asked for after your password. Access tokens and API keys are not affected.">
      {error ? (
        <Failed error={error} retry={() => void refetch()} />
      ) : !row ? (
        <Waiting />
      ) : (
        <div className="panel flex flex-wrap items-center gap-3 p-4 text-sm">
          <p className="min-w-0 flex-1 basis-64 text-soft" data-testid="second-factor">
            {what(row)}
          </p>
          {row.available && !row.enabled && (
            <button type="button" className="button-primary" onClick={() => go({ at: "proof", again: false })}>
              Set up
            </button>
          )}
          {row.enabled && (
            <>
              <button type="button" className="button" onClick={() => go({ at: "codes" })}>
                New recovery codes
              </button>
              <button type="button" className="button" onClick={() => go({ at: "proof", again: true })}>
                Change device
              </button>
              {!row.mandatory && (
                <button type="button" className="button" onClick={() => go({ at: "disable" })}>
                  Disable
                </button>
              )}
            </>
          )}
        </div>
      )}
      {step?.at === "proof" && (
        <Confirm
          title={step.again ? "Change the device" : "Set up a second factor"}
          action="Continue"
          onClose={close}
          onRun={async () => go({ at: "app", offer: await send<SecondFactorOffer>("POST", "second-factor/offer", step.again ? { code: typed } : { password: typed }) })}
        >
          <p>{step.again ? "Enter a code of the present device, or a recovery code." : "Enter your password to continue."}</p>
          <Field label={step.again ? "Code" : "Password"} password={!step.again} value={typed} onChange={setTyped} />
        </Confirm>
      )}
      {step?.at === "app" && (
        <Confirm title="Scan this code" action="Enable" onClose={close} onRun={async () => done((await send<RecoveryCodes>("POST", "second-factor/enable", { code: typed })).recovery_codes)}>
          <p>With an authenticator app. Then enter the code that the app shows. Your other sessions end.</p>
          <img src={`data:image/svg+xml;base64,${btoa(step.offer.svg)}`} alt="QR code for an authenticator app" width={200} height={200} className="mx-auto rounded-md bg-white p-2" />
          <p>
            Or enter this key in the app:{" "}
            <code className="font-mono text-xs break-all select-all" data-testid="secret">
              {step.offer.secret}
            </code>
          </p>
          <Field label="Code" value={typed} onChange={setTyped} />
        </Confirm>
      )}
      {step?.at === "codes" && (
        <Confirm
          title="New recovery codes"
          action="Replace codes"
          onClose={close}
          onRun={async () => done((await send<RecoveryCodes>("POST", "second-factor/codes", { code: typed })).recovery_codes)}
        >
          <p>The old ones work no more.</p>
          <Field label="Code" value={typed} onChange={setTyped} />
        </Confirm>
      )}
      {step?.at === "disable" && (
        <Confirm
          title="Disable the second factor?"
          action="Disable"
          danger
          onClose={close}
          onRun={async () => {
            await send("POST", "second-factor/disable", { code: typed });
            notify("The second factor was disabled.");
            close();
            void refresh();
          }}
        >
          <p>From then on your password alone is enough to log in.</p>
          <Field label="Code" value={typed} onChange={setTyped} />
        </Confirm>
      )}
      {step?.at === "saved" && <Saved codes={step.codes} onClose={close} />}
    </Section>
  );
}
