/** Owns the WebSocket: connects, retries, notices silence, asks for what is missing. */

import { ALL, FORBIDDEN, initialFeed, reduce, SIGNED_OUT, type FeedEvent, type FeedState } from "./reducer";
import type { Away, ServerMessage } from "./types";

export interface Transport {
  onopen: (() => void) | null;
  onmessage: ((event: { data: unknown }) => void) | null;
  onclose: ((event: { code: number }) => void) | null;
  send(text: string): void;
  close(): void;
}

export interface Ports {
  open(): Transport;
  now(): number; // seconds
  random(): number; // 0..1
  after(seconds: number, action: () => void): () => void; // returns what cancels it
  /** HTTP status of a request that needs the same login: a refused handshake does not say why it was refused. With it
   * what is away, where the answer says so. */
  probe(): Promise<{ status: number; away?: Away | undefined }>;
}

const RESYNC_EVERY_S = 1;
const BACKOFF_MAX_S = 15;
const SILENT_HEARTBEATS = 3;
const OPENING_S = 10;
const LOOK_EVERY_S = 15; // whether access was given back

/** Full jitter: dashboards that lost the same server come back spread out. */
export const backoff = (attempt: number, random: number): number =>
  0.3 + random * Math.min(BACKOFF_MAX_S, 2 ** Math.min(attempt, 10) / 2);

export class FeedClient {
  state: FeedState = initialFeed;
  private socket: Transport | null = null;
  private attempt = 0;
  private cancelRetry = () => {};
  private cancelWatch = () => {};
  private resyncAt = new Map<string | typeof ALL, number>();
  private listeners = new Set<() => void>();
  private readonly ports: Ports;

  constructor(ports: Ports) {
    this.ports = ports;
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  start(): void {
    if (!this.socket) this.connect();
  }

  stop(): void {
    this.cancelRetry();
    this.cancelWatch();
    this.drop();
  }

  /** Tries at once: the network came back, or someone pressed the button. */
  retryNow(): void {
    if (this.socket) return;
    this.cancelRetry();
    if (this.state.connection === "reconnecting") this.connect();
    else if (this.state.connection === "forbidden") this.look();
  }

  /** Asks for a pool's history where the server does not send it by itself; it answers once for each connection. */
  askHistory(pool: string): void {
    const held = this.state.pools[pool];
    if (this.state.connection !== "open" || this.state.histories || !held || held.complete) return;
    this.socket?.send(JSON.stringify({ type: "resync", pool, history: true }));
  }

  private connect(): void {
    this.apply({ type: "connecting", now: this.ports.now() });
    const socket = this.ports.open();
    this.socket = socket;
    let greeted = false; // a proxy may open it, and pass nothing on
    this.watch(OPENING_S, () => greeted);
    socket.onopen = () => {
      this.watch(OPENING_S, () => greeted);
    };
    socket.onmessage = ({ data }) => {
      const message = parse(data);
      if (!message) return;
      if (message.type === "hello") this.attempt = 0;
      greeted = true;
      this.apply({ type: "message", message, now: this.ports.now() });
      this.watch(this.state.heartbeatS * SILENT_HEARTBEATS, () => greeted);
    };
    socket.onclose = ({ code }) => {
      this.socket = null;
      this.lost(code, greeted);
    };
  }

  private lost(code: number, greeted: boolean): void {
    this.cancelWatch();
    const wait = backoff(this.attempt++, this.ports.random());
    this.apply({ type: "closed", code, retryAt: this.ports.now() + wait });
    if (code === SIGNED_OUT) return;
    if (code === FORBIDDEN) {
      this.lookLater();
      return;
    }
    this.cancelRetry = this.ports.after(wait, () => this.connect());
    if (!greeted)
      void this.ports.probe().then(({ status, away }) => {
        if (away && this.state.connection !== "open") this.apply({ type: "refused", away });
        const blocked = status === 200;
        if (this.state.connection !== "open" && blocked !== (this.state.blocked ?? false)) this.apply({ type: "blocked", blocked });
        if (!this.socket) this.refused(status);
      });
  }

  /** What an HTTP status says of this login, if it says something. */
  private refused(status: number): void {
    if (status !== 401 && status !== 403) return;
    this.cancelRetry();
    this.apply({ type: "closed", code: status === 401 ? SIGNED_OUT : FORBIDDEN, retryAt: 0 });
    if (status === 403) this.lookLater();
  }

  /** A role that was taken may be given back: a plain request tells, and costs less than a socket that is refused. */
  private lookLater(): void {
    this.cancelRetry = this.ports.after(LOOK_EVERY_S * (0.5 + this.ports.random()), () => this.look());
  }

  private look(): void {
    void this.ports.probe().then(({ status }) => {
      if (this.socket || this.state.connection !== "forbidden") return;
      this.cancelRetry();
      if (status === 200) this.connect();
      else if (status === 401) this.refused(status);
      else this.lookLater();
    });
  }

  /** A connection can die without a word; silence is a close of our own. */
  private watch(seconds: number, greeted: () => boolean): void {
    this.cancelWatch();
    this.cancelWatch = this.ports.after(seconds, () => {
      this.drop();
      this.lost(1006, greeted());
    });
  }

  private drop(): void {
    const socket = this.socket;
    if (!socket) return;
    this.socket = null;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
  }

  private apply(event: FeedEvent): void {
    const { state, resync } = reduce(this.state, event);
    this.state = state;
    if (resync !== undefined) this.resync(resync);
    for (const listener of this.listeners) listener();
  }

  private resync(pool: string | typeof ALL): void {
    const now = this.ports.now();
    if (now - (this.resyncAt.get(pool) ?? -Infinity) < RESYNC_EVERY_S) return;
    this.resyncAt.set(pool, now);
    this.socket?.send(JSON.stringify(pool === ALL ? { type: "resync" } : { type: "resync", pool }));
  }
}

function parse(data: unknown): ServerMessage | null {
  if (typeof data !== "string") return null;
  try {
    const message: unknown = JSON.parse(data);
    return typeof message === "object" && message !== null && "type" in message ? (message as ServerMessage) : null;
  } catch {
    return null;
  }
}
