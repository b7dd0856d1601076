import { expect, it } from "vitest";
import { sentence } from "../components/Outages";
import { moment } from "../lib/format";
import { heading } from "../pages/welcome/steps";
import { blank } from "./blank";
import { alike, cutsPast, hides, hidesAlert, isBlind, isHeard, outagesOf } from "./outages";
import { freshness, initialFeed, isStale, reduce, type FeedEvent, type FeedState } from "./reducer";
import type { Away, ServerMessage, Snapshot } from "./types";

const T = 1_790_000_000;
const message = (message: ServerMessage, now = T): FeedEvent => ({ type: "message", message, now });
const hello = (away: Away[] = []): FeedEvent => message({ type: "hello", role: "admin", heartbeat_s: 5, at: T, pools: ["llama"], sources: { away, pools: ["llama", "qwen"] } });
const full: Snapshot = {
  pool: "llama",
  seq: 1,
  at: T,
  running: 3,
  slots: 8,
  queue: { depth: 0, oldest_s: 0 },
  slo: { attainment: 1, violations: 0, total: 9, by_tier: { gold: { ttft_s: 1, attainment: 1, violations: 0, total: 9 } } },
  tenants: { acme: { waiting: 0, running: 3, refusals: {} } },
  entitlements: { "acme-gold": { tenant: "acme", tier: "gold", concurrency: 8, running: 3, waiting: 0, weight: 5, debt: 0, state: "bound" } },
  backends: { "gpu-0": { state: "ready", slots: 8, running: 3, kv_usage: 0.2 }, "gpu-1": { state: "ejected", slots: 8, unseen_since: T - 60 } },
};
const first = message({ type: "snapshot", pool: "llama", seq: 1, data: full });
const play = (...events: FeedEvent[]): FeedState => events.reduce((state, event) => reduce(state, event).state, initialFeed);

it("tells what the server cannot see from the first word on, and which pools there are", () => {
  const state = play(hello([{ source: "redis", since: T - 50 }]));
  expect(outagesOf(state, T)).toEqual([{ source: "redis", since: T - 50 }]);
  expect(state.known).toEqual(["llama", "qwen"]);
  expect(outagesOf(play(hello(), first, message({ type: "sources", away: [] })), T).map((o) => o.source)).toEqual(["engine"]);
});

it("says why a Redis that is there refuses what it is asked", () => {
  const [outage] = outagesOf(play(hello([{ source: "redis", since: T - 50, refuses: "OOM" }])), T);
  expect(outage).toEqual({ source: "redis", since: T - 50, refuses: "OOM" });
  expect(sentence([outage!]).what).toMatch(/^Redis has refused what it is asked \(OOM\) since /);
});

it("takes nothing that the server still had for news while Redis is away", () => {
  const state = play(hello([{ source: "redis", since: T - 1 }]), first);
  expect(isStale(freshness(state, state.pools["llama"], T))).toBe(true);
  expect(isStale(freshness(play(hello(), first), play(hello(), first).pools["llama"], T))).toBe(false);
  expect(freshness(play(hello([{ source: "leader", pool: "llama", since: T - 60 }])), undefined, T).kind).toBe("stale");
});

it("takes what a pool's leader said last for old as soon as the leader is named, however young it is", () => {
  const one = play(hello([{ source: "leader", pool: "llama", since: T - 1 }]), first);
  expect(isStale(freshness(one, one.pools["llama"], T))).toBe(true);
  const other = play(hello([{ source: "leader", pool: "qwen", since: T - 1 }]), first);
  expect(isStale(freshness(other, other.pools["llama"], T))).toBe(false);
});

it("names a replica that does not answer, and says nothing of replicas whose pool nobody sees", () => {
  const state = play(hello(), first);
  expect(outagesOf(state, T)).toEqual([{ source: "engine", pool: "llama", backend: "gpu-1", since: T - 60 }]);
  expect(outagesOf(state, T + 60)).toEqual([]);
});

it("says which outage leaves gaps in records of the past, and which leaves an alert unjudged", () => {
  const of = (source: Away["source"], pool?: string) => [{ source: source as "leader", since: T, ...(pool ? { pool } : {}) }];
  expect(cutsPast(of("leader", "llama"), "llama")?.source).toBe("leader");
  expect(cutsPast(of("leader", "qwen"), "llama")).toBeUndefined();
  expect(cutsPast(of("leader", "qwen"))?.source).toBe("leader");
  expect(cutsPast(of("rules", "llama"), "llama")).toBeUndefined();
  expect(hidesAlert(of("rules", "llama"), "llama")?.source).toBe("rules");
  expect(hidesAlert([{ source: "ledger", pool: "llama", since: T }], "llama")).toBeUndefined();
  expect([cutsPast(of("redis"), "llama"), hidesAlert(of("database"), "llama")].map((one) => one?.source)).toEqual(["redis", "database"]);
});

it("knows itself since when it has lost the server, and believes a server that refuses and says why", () => {
  const lost = reduce(play(hello(), first), { type: "closed", code: 1006, retryAt: T + 9 }).state;
  expect(outagesOf(lost, T + 1)).toEqual([]);
  expect(outagesOf(lost, T + 10)).toEqual([{ source: "server", since: T }]);
  const refused = reduce(lost, { type: "refused", away: { source: "database", since: T - 5 } }).state;
  expect(outagesOf(refused, T + 10)).toEqual([{ source: "database", since: T - 5 }]);
  const never = reduce(reduce(initialFeed, { type: "connecting", now: T }).state, { type: "closed", code: 1006, retryAt: T + 9 }).state;
  expect(outagesOf(never, T + 10)).toEqual([{ source: "server", since: T, atLeast: true }]);
});

it("knows of which pool nothing can be said", () => {
  const leader = [{ source: "leader", pool: "llama", since: T }] as const;
  expect([isBlind(leader, "llama"), isBlind(leader, "qwen"), hides(leader, "qwen")]).toEqual([true, false, undefined]);
  expect(hides([{ source: "redis", since: T }], "qwen")?.source).toBe("redis");
});

it("leaves of a pool that cannot be seen its names and limits, and no figure", () => {
  expect(blank(full)).toEqual({
    pool: "llama",
    seq: 1,
    at: T,
    slo: { by_tier: { gold: { ttft_s: 1 } } },
    tenants: { acme: {} },
    entitlements: { "acme-gold": { tenant: "acme", tier: "gold", concurrency: 8 } },
    backends: { "gpu-0": { state: "unknown", slots: 8 }, "gpu-1": { state: "unknown", slots: 8 } },
  });
});

it("says that everything is set up only where a backend is seen to be ready", () => {
  expect(heading(false, false, true).title).toBe("Everything is set up");
  expect([heading(false, true, true).title, heading(false, false, false).title].join()).not.toContain("Everything");
});

it("tells what takes many pools in one sentence that names them, and since when the first of them is away", () => {
  const pools = Array.from({ length: 13 }, (_, i) => ({ source: "leader" as const, pool: `pool-${String(i).padStart(2, "0")}`, since: T - i }));
  const all = alike([...pools, { source: "rules", pool: "pool-00", since: T }]);
  expect(all.map((group) => group.length)).toEqual([13, 1]);
  const { what } = sentence(all[0]!);
  expect(what).toContain("No scheduler has led 13 pools, the first since ");
  expect(what).toContain(moment(T - 12));
  expect(what).toMatch(/: pool-00, pool-01, pool-02, pool-03, pool-04 and 8 more\.$/);
});

it("tells replicas together that have the same in common, and names the pool of each where there are several", () => {
  const lost = (backend: string, pool: string, ejected = false) => ({ source: "engine" as const, backend, pool, since: T, ...(ejected ? { ejected } : {}) });
  const groups = alike([lost("gpu-0", "llama"), lost("gpu-1", "llama"), lost("gpu-2", "llama", true), lost("gpu-3", "qwen", true)]);
  expect(groups.map((group) => sentence(group).what)).toEqual([
    expect.stringMatching(/^2 replicas of pool llama have not been seen.*: gpu-0 and gpu-1\.$/),
    expect.stringMatching(/^2 replicas have been ejected.*: gpu-2 of llama and gpu-3 of qwen\.$/),
  ]);
});

it("does not say of a replica that was just ejected that nobody has seen it", () => {
  const sick = { "gpu-0": { state: "ejected" as const, observed_s: T - 1 }, "gpu-1": { state: "probing" as const } };
  const state = play(hello(), message({ type: "snapshot", pool: "llama", seq: 1, data: { ...full, backends: sick } }));
  expect(outagesOf(state, T)).toEqual([
    { source: "engine", pool: "llama", backend: "gpu-0", ejected: true },
    { source: "engine", pool: "llama", backend: "gpu-1" },
  ]);
});

it("does not say of a replica that serves, and whose figures cannot be read, that it receives no work", () => {
  const mute = { "gpu-0": { state: "ready" as const, unseen_since: T - 60, running: 2 }, "gpu-1": { state: "ejected" as const, unseen_since: T - 60 } };
  const [serves, out] = outagesOf(play(hello(), message({ type: "snapshot", pool: "llama", seq: 1, data: { ...full, backends: mute } })), T).map((one) => sentence([one]));
  expect(serves!.means).toContain("It receives work until requests or probes fail there");
  expect(out!.means).toContain("receives no work");
});

it("tells since when a pool's requests are not stored, unless the whole database is away", () => {
  const late = message({ type: "snapshot", pool: "llama", seq: 1, data: { ...full, backends: {}, ledger_since: T - 7 } });
  expect(outagesOf(play(hello(), late), T)).toEqual([{ source: "ledger", pool: "llama", since: T - 7 }]);
  expect(outagesOf(play(hello([{ source: "database", since: T - 9 }]), late), T).map((o) => o.source)).toEqual(["database"]);
});

it("nothing may be called well before every pool was heard", () => {
  expect(isHeard(initialFeed)).toBe(false);
  expect(isHeard(play(hello()))).toBe(false);
  expect(isHeard(play(hello(), first))).toBe(false); // qwen was not heard
  expect(isHeard(play(hello(), first, message({ type: "snapshot", pool: "qwen", seq: 1, data: { ...full, pool: "qwen" } })))).toBe(true);
});
