import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { whoIsLoggedIn } from "../api/client";
import { useFeed, useReopen } from "../feed/live";
import { toLogin, user } from "../lib/page";
import { session } from "../lib/session";
import { Modal } from "./Sheet";

const LOOK_EVERY_MS = 3000;

/** The session has ended while something was typed: the page stays as it is until somebody has logged in elsewhere. */
export function SignedOut() {
  const ended = useSyncExternalStore(session.subscribe, session.hasEnded);
  const client = useQueryClient();
  const { connection } = useFeed();
  const signedOut = connection === "signed_out";
  const refused = useRef(false);
  useEffect(() => {
    if (connection === "forbidden") refused.current = true;
    if (connection !== "open" || !refused.current) return;
    refused.current = false; // access was given back: what was refused meanwhile is asked for again
    void client.invalidateQueries();
  }, [client, connection]);
  useEffect(() => {
    if (signedOut && session.hasTyped()) session.end();
  }, [signedOut]);
  return ended ? <Notice /> : null;
}

function Notice() {
  const client = useQueryClient();
  const reopen = useReopen();
  const [other, setOther] = useState("");
  const look = useCallback(async () => {
    const name = await whoIsLoggedIn();
    setOther(name && name !== user.name ? name : "");
    if (name !== user.name) return;
    session.back();
    reopen();
    void client.invalidateQueries();
  }, [client, reopen]);
  useEffect(() => {
    const timer = setInterval(() => void look(), LOOK_EVERY_MS);
    const seen = () => void look();
    addEventListener("focus", seen);
    return () => {
      clearInterval(timer);
      removeEventListener("focus", seen);
    };
  }, [look]);
  return (
    <Modal title="Your session has ended" onClose={() => void look()}>
      <p className="mt-2 text-sm text-soft">
        {other
          ? `${other} is logged in now, and this page was opened by ${user.name}. Log in as ${user.name} to continue here.`
          : "What you typed on this page is still here, and was not saved. Log in again in another tab, then return here."}
      </p>
      <div className="mt-4 flex flex-wrap justify-end gap-2">
        <button type="button" className="button h-9" onClick={toLogin}>
          Leave this page
        </button>
        <a className="button-primary" data-autofocus href="/login?next=/" target="_blank" rel="noopener">
          Log in in a new tab
        </a>
      </div>
    </Modal>
  );
}
