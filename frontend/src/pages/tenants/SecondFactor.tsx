import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import type { Passkey, RecoveryCodes, SecondFactor as Row, SecondFactorOffer } from "../../api/catalog";
import { get, send } from "../../api/client";
import { CopyButton } from "../../components/Copy";
import { notify } from "../../components/Notices";
import { Modal } from "../../components/Sheet";
import { makePasskey } from "../../lib/passkeys";
import { useRefresh } from "./data";
import { Confirm, Failed, Waiting, When } from "./parts";
import { Section } from "./PeopleParts";
import { Field, ProofFields, type Proof } from "./Proof";
import { counted } from "../../lib/format";

type Step =
  | { at: "proof" | "codes" | "disable" | "passkey" }
  | { at: "app"; offer: SecondFactorOffer }
  | { at: "saved"; codes: string[] }
  | { at: "rename" | "remove"; passkey: Passkey };
const NAME_LETTERS = 60;

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
      On since <When at={row.since} />. Last used: {row.used_at ? <When at={row.used_at} /> : "never"}. {counted(row.codes_left, "recovery code")} left.
    </>
  );
}

/** The passkeys of an account, each with what can be done about it. */
function Passkeys({ rows, onStep }: { rows: Passkey[]; onStep: (step: Step) => void }) {
  return (
    <ul className="w-full divide-y divide-line border-t border-line" aria-label="Passkeys">
      {rows.map((one) => (
        <li key={one.id} className="flex flex-wrap items-center gap-x-3 gap-y-1 py-2">
          <span className="min-w-0 flex-1 basis-48">
            <span className="font-medium text-ink">{one.name}</span>
            <span className="block text-xs text-soft">
              Added <When at={one.since} />, last used {one.used_at ? <When at={one.used_at} /> : "never"}
            </span>
          </span>
          <button type="button" className="button" aria-label={`Rename passkey ${one.name}`} onClick={() => onStep({ at: "rename", passkey: one })}>
            Rename
          </button>
          <button type="button" className="button" aria-label={`Remove passkey ${one.name}`} onClick={() => onStep({ at: "remove", passkey: one })}>
            Remove
          </button>
        </li>
      ))}
    </ul>
  );
}

/** One's own second factor: an app, passkeys, recovery codes. */
export function SecondFactor() {
  const { data: row, error, refetch } = useQuery({ queryKey: ["catalog", "second-factor"], queryFn: ({ signal }) => get<Row>("second-factor", {}, signal) });
  const refresh = useRefresh();
  const [step, setStep] = useState<Step | null>(null);
  const [proof, setProof] = useState<Proof>({});
  const [typed, setTyped] = useState("");
  const go = (next: Step | null) => {
    setTyped(next?.at === "rename" ? next.passkey.name : "");
    setProof({});
    setStep(next);
  };
  const close = () => go(null);
  const done = (codes: string[]) => {
    go({ at: "saved", codes });
    void refresh();
  };
  const over = (told: string) => {
    notify(told);
    close();
    void refresh();
  };
  /** An answer of a passkey works once: after a refusal another one is asked for. */
  const once = (run: () => Promise<void>) => () =>
    run().catch((reason: unknown) => {
      setProof((old) => ({ ...old, passkey: undefined }));
      throw reason;
    });
  const addPasskey = async () => {
    const { options } = await send<{ options: unknown }>("POST", "second-factor/passkeys/offer", proof);
    const made = await send<RecoveryCodes>("POST", "second-factor/passkeys", { name: typed, credential: await makePasskey(options) });
    if (made.recovery_codes.length) done(made.recovery_codes);
    else over("The passkey was added.");
  };
  return (
    <Section id="second-factor" title="Your second factor" intro="A code from an authenticator app, or a passkey, asked for after your password. Access tokens and API keys are not affected.">
      {error ? (
        <Failed error={error} retry={() => void refetch()} />
      ) : !row ? (
        <Waiting />
      ) : (
        <div className="panel flex flex-wrap items-center gap-3 p-4 text-sm">
          <p className="min-w-0 flex-1 basis-64 text-soft" data-testid="second-factor">
            {what(row)}
          </p>
          {row.available && (
            <>
              <button type="button" className="button" onClick={() => go({ at: "proof" })}>
                {row.app ? "Change app" : "Set up an app"}
              </button>
              <button type="button" className="button" onClick={() => go({ at: "passkey" })}>
                Add a passkey
              </button>
            </>
          )}
          {row.enabled && (
            <button type="button" className="button" onClick={() => go({ at: "codes" })}>
              New recovery codes
            </button>
          )}
          {row.enabled && !row.mandatory && (
            <button type="button" className="button" onClick={() => go({ at: "disable" })}>
              Disable
            </button>
          )}
          {row.passkeys.length > 0 && <Passkeys rows={row.passkeys} onStep={go} />}
        </div>
      )}
      {row && step?.at === "proof" && (
        <Confirm
          title={row.app ? "Change the app" : "Set up an authenticator app"}
          action="Continue"
          onClose={close}
          onRun={once(async () => go({ at: "app", offer: await send<SecondFactorOffer>("POST", "second-factor/offer", proof) }))}
        >
          <p>Show that it is you.</p>
          <ProofFields row={row} proof={proof} onProof={setProof} />
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
      {row && step?.at === "passkey" && (
        <Confirm title="Add a passkey" action="Continue" onClose={close} onRun={once(addPasskey)}>
          <p>This device, a phone or a security key. Your browser asks which.{!row.enabled && " Your other sessions end."}</p>
          <Field label="Name" free={NAME_LETTERS} value={typed} onChange={setTyped} />
          <ProofFields row={row} proof={proof} onProof={setProof} />
        </Confirm>
      )}
      {step?.at === "rename" && (
        <Confirm
          title={`Rename the passkey ${step.passkey.name}`}
          action="Rename"
          onClose={close}
          onRun={async () => {
            await send("PATCH", `second-factor/passkeys/${step.passkey.id}`, { name: typed });
            over("The passkey was renamed.");
          }}
        >
          <Field label="Name" free={NAME_LETTERS} value={typed} onChange={setTyped} />
        </Confirm>
      )}
      {row && step?.at === "remove" && (
        <Confirm
          title={`Remove the passkey ${step.passkey.name}?`}
          action="Remove"
          danger
          onClose={close}
          onRun={once(async () => {
            await send("POST", `second-factor/passkeys/${step.passkey.id}/remove`, proof);
            over("The passkey was removed.");
          })}
        >
          <p>It opens this account no more.{!row.app && row.passkeys.length === 1 && " It is the last: from then on your password alone is enough."}</p>
          <ProofFields row={row} proof={proof} onProof={setProof} />
        </Confirm>
      )}
      {row && step?.at === "codes" && (
        <Confirm title="New recovery codes" action="Replace codes" onClose={close} onRun={once(async () => done((await send<RecoveryCodes>("POST", "second-factor/codes", proof)).recovery_codes))}>
          <p>The old ones work no more.</p>
          <ProofFields row={row} proof={proof} onProof={setProof} />
        </Confirm>
      )}
      {row && step?.at === "disable" && (
        <Confirm
          title="Disable the second factor?"
          action="Disable"
          danger
          onClose={close}
          onRun={once(async () => {
            await send("POST", "second-factor/disable", proof);
            over("The second factor was disabled.");
          })}
        >
          <p>{row.passkeys.length ? "The passkeys are removed, too. " : ""}From then on your password alone is enough to log in.</p>
          <ProofFields row={row} proof={proof} onProof={setProof} />
        </Confirm>
      )}
      {step?.at === "saved" && <Saved codes={step.codes} onClose={close} />}
    </Section>
  );
}
