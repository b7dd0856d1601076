/** Passkeys, as the browser makes and uses them. */

const OLD = "This browser cannot use passkeys here: it is too old, or this address is neither HTTPS nor localhost.";

async function answered(asked: () => Promise<Credential | null>): Promise<unknown> {
  if (typeof PublicKeyCredential === "undefined" || !PublicKeyCredential.parseRequestOptionsFromJSON) throw new Error(OLD);
  try {
    const answer = await asked();
    if (answer instanceof PublicKeyCredential) return answer.toJSON() as unknown;
  } catch (error) {
    if (error instanceof DOMException && error.name === "InvalidStateError") throw new Error("This device has a passkey of this account already.");
    if (!(error instanceof DOMException && error.name === "NotAllowedError")) throw error;
  }
  throw new Error("No passkey answered. Try again.");
}

/** Asks the browser for a new one; its public half. */
export const makePasskey = (options: unknown): Promise<unknown> =>
  answered(() => navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options as PublicKeyCredentialCreationOptionsJSON) }));

/** Asks the browser to sign with one that is there. */
export const usePasskey = (options: unknown): Promise<unknown> =>
  answered(() => navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options as PublicKeyCredentialRequestOptionsJSON) }));
