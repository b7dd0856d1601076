import { useFeed, useNow, usePaused } from "../feed/live";
import { ageOf, freshness, type Freshness, type PoolState } from "../feed/reducer";
import { age } from "../lib/format";
import { session } from "../lib/session";

interface Look {
  tone: "good" | "warn" | "bad" | "plain";
  text: string;
  spoken: string;
}

function look(state: Freshness): Look {
  switch (state.kind) {
    case "connecting":
      return { tone: "plain", text: "Connecting", spoken: "Connecting to the live feed" };
    case "live":
      return { tone: "good", text: "Live", spoken: "The live feed is up to date" };
    case "reconnecting":
      return {
        tone: "warn",
        text: state.ageS === undefined ? "Reconnecting" : `Reconnecting, stale for ${age(state.ageS)}`,
        spoken: "The live feed was lost; reconnecting",
      };
    case "stale":
      return state.ageS === undefined ? { tone: "warn", text: "Unknown", spoken: "The current state is unknown" } : { tone: "warn", text: `Stale for ${age(state.ageS)}`, spoken: "The figures are stale" };
    case "signed_out":
      return { tone: "bad", text: "Signed out", spoken: "You are signed out" };
    case "forbidden":
      return { tone: "bad", text: "No access", spoken: "You may not see any pool" };
  }
}

const dots = { good: "bg-good", warn: "bg-amber", bad: "bg-bad", plain: "bg-faint" };

/** Whether what is on the screen is true now, in a word. */
export function ConnectionPill({ pool }: { pool: PoolState | undefined }) {
  const feed = useFeed();
  const now = useNow();
  const [paused] = usePaused();
  const state = freshness(feed, pool, now);
  const shown: Look =
    paused && (state.kind === "live" || state.kind === "stale")
      ? { tone: "plain", text: `Paused, ${age(pool ? ageOf(feed, pool, now) : 0)} ago`, spoken: "Paused" }
      : look(state);
  return (
    <>
      <span data-testid="connection" data-state={paused ? "paused" : state.kind} className="inline-flex h-8 items-center gap-2 rounded-md px-2 text-xs whitespace-nowrap text-soft" aria-hidden="true">
        <span className={`size-2 rounded-full ${dots[shown.tone]}`} />
        {shown.text}
      </span>
      <span role="status" className="sr-only">
        {shown.spoken}
      </span>
    </>
  );
}

function explain(state: Freshness): { text: string; action?: "login" } | null {
  switch (state.kind) {
    case "stale":
      // What is away is said above the page.
      return state.why === "gap" ? { text: `Some updates were lost. Loading the current state; the figures are ${age(state.ageS ?? 0)} old.` } : null;
    case "signed_out":
      return { text: "Your session has ended, so the figures are no longer updated.", action: "login" };
    case "forbidden":
      return { text: "This account is not a member of any tenant, so it cannot see anything. An administrator can add it to one." };
    default:
      return null;
  }
}

/** What is wrong and what happens next. Lies over the page, so that nothing jumps. */
export function ConnectionNotice({ pool }: { pool: PoolState | undefined }) {
  const feed = useFeed();
  const now = useNow();
  const [paused] = usePaused();
  const state = freshness(feed, pool, now);
  const message = explain(state);
  if (!message || (paused && state.kind === "stale")) return null;
  return (
    <div data-testid="notice" className="fixed inset-x-3 bottom-3 z-30 mx-auto flex max-w-xl items-center gap-3 rounded-lg border border-edge bg-panel px-4 py-2.5 text-sm text-ink shadow-lg">
      <p className="flex-1">{message.text}</p>
      {message.action === "login" && (
        <button type="button" className="button-primary" onClick={session.end}>
          Log in
        </button>
      )}
    </div>
  );
}
