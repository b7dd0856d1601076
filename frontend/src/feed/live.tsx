/** The one feed of the page, for React: shared socket, pause, and nothing drawn while the tab is hidden. */

import { createContext, use, useCallback, useEffect, useMemo, useState, useSyncExternalStore, type ReactNode } from "react";
import type { FeedState } from "./reducer";
import { outagesOf, type Outage } from "./outages";
import { Pace } from "./pace";
import type { Away } from "./types";
import { FeedClient, type Ports, type Transport } from "./socket";

const browser: Ports = {
  open: () => new WebSocket(new URL("/ws/live", location.href.replace(/^http/, "ws"))) as unknown as Transport,
  now: () => Date.now() / 1000,
  random: Math.random,
  after: (seconds, action) => {
    const timer = setTimeout(action, seconds * 1000);
    return () => clearTimeout(timer);
  },
  probe: () =>
    fetch("/api/v1/live", { headers: { accept: "application/json" } }).then(
      async (response) => ({ status: response.status, away: response.status === 503 ? awayIn(await response.json().catch(() => null)) : undefined }),
      () => ({ status: 0 }),
    ),
};

/** What an answer of 503 says is away (docs/reference/api.md). */
function awayIn(body: unknown): Away | undefined {
  if (body === null || typeof body !== "object" || !("source" in body) || !("since" in body)) return undefined;
  return typeof body.source === "string" && typeof body.since === "number" ? (body as Away) : undefined;
}

/** What is shown: the feed itself, or the moment at which someone pressed pause. */
export class View {
  readonly client: FeedClient;
  shown: FeedState;
  paused = false;
  private listeners = new Set<() => void>();

  constructor(client: FeedClient) {
    this.client = client;
    this.shown = client.state;
    const pace = new Pace(() => this.refresh(), {
      now: () => performance.now(),
      after: (ms, action) => setTimeout(action, ms),
      frame: requestAnimationFrame.bind(window),
    });
    client.subscribe(() => pace.soon());
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** The feed goes on underneath, so that nothing is missing from the charts afterwards. */
  pause(paused: boolean): void {
    this.paused = paused;
    this.refresh();
    this.tell();
  }

  refresh(): void {
    if (document.hidden) return;
    const { pools, ...rest } = this.client.state;
    this.shown = this.paused ? { ...rest, pools: this.shown.pools } : this.client.state;
    this.tell();
  }

  private tell(): void {
    for (const listener of this.listeners) listener();
  }
}

const Context = createContext<View | null>(null);

/** Opens the feed. To be called before React draws: effects of what is drawn ask the API first, and one web process
 * would answer all of that before it takes the socket. */
export function openFeed(): View {
  const view = new View(new FeedClient(browser));
  view.client.start();
  return view;
}

export function LiveFeed({ view, children }: { view: View; children: ReactNode }) {
  useEffect(() => {
    const wake = () => {
      view.refresh();
      if (!document.hidden) view.client.retryNow();
    };
    const online = () => view.client.retryNow();
    view.client.start();
    document.addEventListener("visibilitychange", wake);
    addEventListener("online", online);
    return () => {
      document.removeEventListener("visibilitychange", wake);
      removeEventListener("online", online);
      view.client.stop();
    };
  }, [view]);
  return <Context value={view}>{children}</Context>;
}

function useView(): View {
  const view = use(Context);
  if (!view) throw new Error("useFeed outside of LiveFeed");
  return view;
}

export function useFeed(): FeedState {
  const view = useView();
  return useSyncExternalStore(view.subscribe, () => view.shown);
}

/** The feed of this moment, also while what is shown is held: what is wrong now is no figure that somebody wants to read in peace. */
export function useLive(): FeedState {
  const view = useView();
  return useSyncExternalStore(view.subscribe, () => view.client.state);
}

export function usePaused(): [boolean, (paused: boolean) => void] {
  const view = useView();
  return [useSyncExternalStore(view.subscribe, () => view.paused), (paused) => view.pause(paused)];
}

export const useRetry = (): (() => void) => {
  const view = useView();
  return () => view.client.retryNow();
};

/** Opens the feed again after somebody has logged in again. */
export function useReopen(): () => void {
  const { client } = useView();
  return useCallback(() => client.start(), [client]);
}

/** The whole history of the pool that is looked at, also where the server sends it only to who asks. */
export function useHistory(pool: string | undefined): void {
  const { client } = useView();
  const feed = useFeed();
  const held = pool === undefined ? undefined : feed.pools[pool];
  const due = feed.connection === "open" && !feed.histories && held !== undefined && !held.complete;
  useEffect(() => {
    if (due && pool !== undefined) client.askHistory(pool);
  }, [client, due, pool]);
}

/** This browser's clock [s], once a second while the page is seen. */
export function useNow(): number {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) setNow(Date.now() / 1000);
    }, 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** What cannot be seen now. The same list as long as it says the same. */
export function useOutages(): readonly Outage[] {
  const feed = useLive();
  const now = useNow();
  const text = JSON.stringify(outagesOf(feed, now));
  return useMemo(() => JSON.parse(text) as Outage[], [text]);
}
