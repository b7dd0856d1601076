import { beforeEach, describe, expect, it, vi } from "vitest";
import { backoff, FeedClient, type Ports, type Transport } from "./socket";

class FakeSocket implements Transport {
  onopen: Transport["onopen"] = null;
  onmessage: Transport["onmessage"] = null;
  onclose: Transport["onclose"] = null;
  sent: unknown[] = [];
  closed = false;
  send(text: string) {
    this.sent.push(JSON.parse(text));
  }
  close() {
    this.closed = true;
  }
  says(message: object) {
    this.onmessage?.({ data: JSON.stringify(message) });
  }
}

let now: number;
let timers: { at: number; action: () => void }[];
let sockets: FakeSocket[];
let status: number;
let client: FeedClient;

const ports: Ports = {
  open: () => {
    sockets.push(new FakeSocket());
    return sockets.at(-1)!;
  },
  now: () => now,
  random: () => 0.5,
  after: (seconds, action) => {
    const timer = { at: now + seconds, action };
    timers.push(timer);
    return () => (timers = timers.filter((t) => t !== timer));
  },
  probe: () => Promise.resolve({ status }),
};

function pass(seconds: number) {
  const until = now + seconds;
  for (;;) {
    const due = timers.filter((t) => t.at <= until).sort((a, b) => a.at - b.at)[0];
    if (!due) break;
    timers = timers.filter((t) => t !== due);
    now = Math.max(now, due.at);
    due.action();
  }
  now = until;
}

const hello = () => ({ type: "hello", role: "admin", heartbeat_s: 5, at: now, pools: ["llama"] });

beforeEach(() => {
  now = 1000;
  timers = [];
  sockets = [];
  status = 200;
  client = new FeedClient(ports);
  client.start();
});

describe("the feed's socket", () => {
  it("reconnects with growing pauses and starts over once it was welcomed", () => {
    sockets[0]!.onopen?.();
    sockets[0]!.says(hello());
    expect(client.state.connection).toBe("open");
    for (const expected of [1, 2, 3]) {
      sockets.at(-1)!.onclose?.({ code: 1006 });
      expect(client.state.connection).toBe("reconnecting");
      expect(client.state.retryAt).toBeGreaterThan(now);
      pass(client.state.retryAt - now + 0.01);
      expect(sockets).toHaveLength(expected + 1);
    }
    sockets.at(-1)!.says(hello());
    expect(client.state).toMatchObject({ connection: "open", retryAt: 0 });
  });

  it("spreads its attempts between a moment and fifteen seconds", () => {
    expect(backoff(0, 0)).toBeCloseTo(0.3);
    for (let attempt = 0; attempt < 50; attempt++) expect(backoff(attempt, 1)).toBeLessThanOrEqual(15.3);
    expect(backoff(3, 0.1)).not.toBe(backoff(3, 0.9));
  });

  it("takes silence of three heartbeats for a lost connection", () => {
    sockets[0]!.says(hello());
    pass(14.9);
    expect(client.state.connection).toBe("open");
    pass(0.2);
    expect(sockets[0]!.closed).toBe(true);
    expect(client.state.connection).toBe("reconnecting");
  });

  it("asks for a missing snapshot at most once a second", () => {
    const socket = sockets[0]!;
    socket.says(hello());
    socket.says({ type: "snapshot", pool: "llama", seq: 1, data: { pool: "llama", seq: 1, at: now } });
    for (const seq of [3, 4, 5]) socket.says({ type: "delta", pool: "llama", seq, patch: {} });
    expect(socket.sent).toEqual([{ type: "resync", pool: "llama" }]);
    now += 1.1;
    socket.says({ type: "delta", pool: "llama", seq: 6, patch: {} });
    expect(socket.sent).toHaveLength(2);
  });

  it("does not knock again where the session has ended", () => {
    sockets[0]!.says(hello());
    sockets[0]!.onclose?.({ code: 4401 });
    pass(120);
    expect(sockets).toHaveLength(1);
    expect(client.state.connection).toBe("signed_out");
  });

  it("finds out by a plain request why a handshake was refused", async () => {
    status = 401;
    sockets[0]!.onclose?.({ code: 1006 });
    await vi.waitFor(() => expect(client.state.connection).toBe("signed_out"));
    pass(120);
    expect(sockets).toHaveLength(1);
  });

  it("opens by itself when access is given back", async () => {
    sockets[0]!.says(hello());
    sockets[0]!.onclose?.({ code: 4403 });
    status = 403;
    pass(15.1);
    await Promise.resolve();
    expect(client.state.connection).toBe("forbidden");
    expect(sockets).toHaveLength(1);
    status = 200;
    pass(15.1);
    await vi.waitFor(() => expect(sockets).toHaveLength(2));
    sockets[1]!.says(hello());
    expect(client.state.connection).toBe("open");
  });

  it("takes a handshake that is refused for want of a role as no access", async () => {
    status = 403;
    sockets[0]!.onclose?.({ code: 1006 });
    await vi.waitFor(() => expect(client.state.connection).toBe("forbidden"));
    status = 200;
    client.retryNow();
    await vi.waitFor(() => expect(sockets).toHaveLength(2));
  });

  it("notices that the session ended while it had no access", async () => {
    sockets[0]!.onclose?.({ code: 4403 });
    status = 401;
    pass(15.1);
    await vi.waitFor(() => expect(client.state.connection).toBe("signed_out"));
    pass(120);
    expect(sockets).toHaveLength(1);
  });

  it("tells a socket that does not open from a server that does not answer", async () => {
    sockets[0]!.onopen?.(); // a proxy takes it, and drops it before a word was passed on
    sockets[0]!.onclose?.({ code: 1006 });
    await vi.waitFor(() => expect(client.state.blocked).toBe(true));
    status = 0;
    pass(client.state.retryAt - now + 0.01);
    pass(10.1); // the next one hangs
    await vi.waitFor(() => expect(client.state.blocked).toBe(false));
    status = 200;
    pass(client.state.retryAt - now + 0.01);
    sockets.at(-1)!.onclose?.({ code: 1006 });
    await vi.waitFor(() => expect(client.state.blocked).toBe(true));
    pass(client.state.retryAt - now + 0.01);
    sockets.at(-1)!.says(hello());
    expect(client.state).toMatchObject({ connection: "open", blocked: false });
    sockets.at(-1)!.onclose?.({ code: 1006 });
    expect(client.state.blocked, "one that was greeted is lost, not blocked").toBe(false);
  });

  it("asks for a pool's history only where the server does not send it by itself, and until it has it", () => {
    const frames = [{ at: now - 1, depth: 3 }];
    const asked = () => sockets[0]!.sent.filter((message) => (message as { history?: boolean }).history);
    sockets[0]!.says(hello());
    sockets[0]!.says({ type: "snapshot", pool: "llama", seq: 1, data: { pool: "llama", at: now } });
    client.askHistory("llama");
    expect(asked()).toEqual([]);
    sockets[0]!.says({ ...hello(), histories: false });
    client.askHistory("llama");
    expect(asked()).toEqual([{ type: "resync", pool: "llama", history: true }]);
    sockets[0]!.says({ type: "history", pool: "llama", frames });
    client.askHistory("llama");
    client.askHistory("of-another-planet");
    expect(asked()).toHaveLength(1);
    sockets[0]!.says({ ...hello(), histories: false });
    expect(client.state.pools["llama"]!.complete, "what happened meanwhile is missing").toBe(false);
  });

  it("survives frames that make no sense", () => {
    sockets[0]!.says(hello());
    sockets[0]!.onmessage?.({ data: "{" });
    sockets[0]!.onmessage?.({ data: new ArrayBuffer(3) });
    sockets[0]!.says({ type: "something_new" });
    expect(client.state.connection).toBe("open");
  });

  it("tries at once when asked to, and only then twice", () => {
    sockets[0]!.says(hello());
    sockets[0]!.onclose?.({ code: 1001 });
    client.retryNow();
    client.retryNow();
    expect(sockets).toHaveLength(2);
  });
});
