import { describe, expect, it } from "vitest";
import { ageOf, ALL, freshness, initialFeed, isStale, reduce, type FeedEvent, type FeedState } from "./reducer";
import type { ServerMessage, Snapshot } from "./types";

const T = 1_790_000_000;
const snapshot = (seq: number, extra: Partial<Snapshot> = {}): Snapshot => ({ pool: "llama", seq, at: T + seq, running: seq, ...extra });

const message = (message: ServerMessage, now = T): FeedEvent => ({ type: "message", message, now });
const hello = message({ type: "hello", role: "admin", heartbeat_s: 5, at: T, pools: ["llama"] });
const first = message({ type: "snapshot", pool: "llama", seq: 10, data: snapshot(10) });
const delta = (seq: number, patch: Record<string, unknown> = { at: T + seq, running: seq }): FeedEvent =>
  message({ type: "delta", pool: "llama", seq, patch }, T + seq);

const play = (...events: FeedEvent[]): FeedState => events.reduce((state, event) => reduce(state, event).state, initialFeed);

describe("the feed", () => {
  it("starts from a snapshot and follows numbered changes", () => {
    const state = play(hello, first, delta(11), delta(12));
    expect(state.pools["llama"]?.snapshot).toMatchObject({ seq: 12, running: 12 });
    expect(state.pools["llama"]?.history.map((p) => p.running)).toEqual([10, 11, 12]);
  });

  it("asks for the snapshot when a number is missing, keeps the last good one, and is healed by the answer", () => {
    const before = play(hello, first, delta(11));
    const step = reduce(before, delta(13));
    expect(step.resync).toBe("llama");
    expect(step.state.pools["llama"]).toMatchObject({ gap: true, snapshot: { seq: 11 } });
    const healed = reduce(step.state, message({ type: "snapshot", pool: "llama", seq: 14, data: snapshot(14) }));
    expect(healed.resync).toBeUndefined();
    expect(healed.state.pools["llama"]).toMatchObject({ gap: false, snapshot: { seq: 14 } });
    expect(reduce(healed.state, delta(15)).state.pools["llama"]?.snapshot.running).toBe(15);
  });

  it("ignores changes that are older than the snapshot it got", () => {
    const step = reduce(play(hello, first), delta(9));
    expect(step.resync).toBeUndefined();
    expect(step.state.pools["llama"]?.snapshot.seq).toBe(10);
  });

  it("asks for a pool whose first snapshot it never saw", () => {
    expect(reduce(play(hello), delta(5)).resync).toBe("llama");
  });

  it("fills the charts from the server's history without doubling what it saw itself", () => {
    const frames = [8, 9, 10].map((seq) => ({ at: T + seq, running: seq }));
    const state = play(hello, first, message({ type: "history", pool: "llama", frames }), delta(11));
    expect(state.pools["llama"]?.history.map((p) => p.at - T)).toEqual([8, 9, 10, 11]);
    expect(state.pools["llama"]?.complete).toBe(true);
  });

  it("keeps at most fifteen minutes", () => {
    let state = play(hello, first);
    for (let seq = 11; seq <= 1000; seq++) state = reduce(state, delta(seq)).state;
    expect(state.pools["llama"]?.history).toHaveLength(900);
  });

  it("forgets pools that are removed or that a new connection no longer names", () => {
    expect(play(hello, first, message({ type: "removed", pool: "llama" })).pools).toEqual({});
    expect(play(hello, first, message({ type: "hello", role: "member", heartbeat_s: 5, at: T, pools: [] })).pools).toEqual({});
  });

  it("knows that a named pool is still to come, so that an empty page is not shown for a moment", () => {
    expect(play(hello).expected).toBe(1);
    expect(freshness(play(hello), undefined, T).kind).toBe("connecting");
    expect(play(hello, first).expected).toBe(0);
  });

  it("measures age on the server's clock, whatever the browser's says", () => {
    const skew = 3600;
    const state = play(message({ type: "hello", role: "admin", heartbeat_s: 5, at: T + 10, pools: ["llama"] }, T + 10 + skew), first);
    expect(ageOf(state, state.pools["llama"]!, T + 17 + skew)).toBeCloseTo(7);
  });

  it("asks again on a heartbeat when changes stopped without a gap to show for it", () => {
    const state = play(hello, first);
    expect(reduce(state, message({ type: "heartbeat", at: T + 12 }, T + 12)).resync).toBeUndefined();
    expect(reduce(state, message({ type: "heartbeat", at: T + 20 }, T + 20)).resync).toBe(ALL);
  });

  it("equals the server's snapshot after every frame that arrives, with a third of them lost", () => {
    let seed = 1;
    const drop = () => (seed = (seed * 48271) % 2147483647) / 2147483647 < 0.3;
    let state = play(hello, first);
    let lost = 0;
    for (let seq = 11; seq < 2000; seq++) {
      if (drop()) {
        lost++;
        continue;
      }
      const step = reduce(state, delta(seq));
      state = step.resync
        ? reduce(step.state, message({ type: "snapshot", pool: "llama", seq, data: snapshot(seq) }, T + seq)).state
        : step.state;
      expect(state.pools["llama"]!.snapshot).toMatchObject({ seq, running: seq });
    }
    expect(lost).toBeGreaterThan(500);
  });
});

describe("freshness", () => {
  const live = play(hello, first);
  const pool = live.pools["llama"];
  const at = (s: number) => T + 10 + s;

  it("is live for five seconds after the figures, then stale with their age", () => {
    expect(freshness(live, pool, at(4)).kind).toBe("live");
    expect(freshness(live, pool, at(12))).toEqual({ kind: "stale", ageS: 12, why: "no_updates" });
    expect(isStale(freshness(live, pool, at(12)))).toBe(true);
  });

  it("says at once when Redis does not answer, until it is back", () => {
    const down = reduce(live, message({ type: "error", code: "state_unavailable", message: "" })).state;
    expect(freshness(down, pool, at(1))).toMatchObject({ why: "state_unavailable" });
    expect(reduce(down, message({ type: "error", code: "state_available", message: "" })).state.stateAvailable).toBe(true);
  });

  it("greys figures only once they are old, also while reconnecting", () => {
    const cut = reduce(live, { type: "closed", code: 1006, retryAt: at(3) }).state;
    expect(freshness(cut, pool, at(1))).toEqual({ kind: "reconnecting", ageS: 1, retryInS: 2 });
    expect(isStale(freshness(cut, pool, at(1)))).toBe(false);
    expect(isStale(freshness(cut, pool, at(9)))).toBe(true);
  });

  it("ends with the session, and shows nothing to who may see nothing", () => {
    expect(freshness(reduce(live, { type: "closed", code: 4401, retryAt: 0 }).state, pool, at(1)).kind).toBe("signed_out");
    expect(reduce(live, { type: "closed", code: 4403, retryAt: 0 }).state).toMatchObject({ connection: "forbidden", pools: {} });
  });
});
