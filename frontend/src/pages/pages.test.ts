import { describe, expect, it } from "vitest";
import type { LedgerRow } from "../api/requests";
import { phases } from "./requests/phases";
import { rows, shareText, sorted, standingOf } from "./rows";

const snapshot = {
  pool: "llama",
  seq: 1,
  at: 1,
  tenants: { acme: { waiting: 3, running: 2, refusals: { concurrency: 1 } } },
  entitlements: {
    "acme-premium": { tenant: "acme", tier: "premium", waiting: 1, running: 2, concurrency: 40, ttft_ms: { p95: 100 } },
    "acme-batch": { tenant: "acme", tier: "batch", waiting: 2, running: 0, concurrency: 8 },
  },
};

describe("rows of the table", () => {
  it("are one per entitlement, or one per tenant with the sum of its limits", () => {
    expect(rows(snapshot, "entitlement").map((r) => r.name)).toEqual(["acme-premium", "acme-batch"]);
    expect(rows(snapshot, "tenant")).toMatchObject([{ name: "acme", waiting: 3, limit: 48, refused: { concurrency: 1 } }]);
  });

  it("have a share where it is known", () => {
    const [premium, batch] = rows({ ...snapshot, entitlements: { a: { tenant: "acme", share: 0.412, burst: 0.5 }, b: { tenant: "acme" } } }, "entitlement");
    expect(standingOf(premium!)).toBe("burst 0.50, share 0.41× of its part of the class");
    expect(standingOf(batch!)).toBeUndefined();
    expect([shareText(1), shareText(12.4), shareText(undefined)]).toEqual(["1×", "12×", "–"]);
  });

  it("sort either way with the unknown last", () => {
    const list = rows(snapshot, "entitlement");
    expect(sorted(list, "ttft", true).map((r) => r.name)).toEqual(["acme-premium", "acme-batch"]);
    expect(sorted(list, "ttft", false).map((r) => r.name)).toEqual(["acme-premium", "acme-batch"]);
    expect(sorted(list, "waiting", true)[0]!.name).toBe("acme-batch");
  });
});

describe("a request's time line", () => {
  const base = { received_at: "2026-11-21T03:00:00.000Z", queued_at: null, granted_at: null, first_token_at: null } as unknown as LedgerRow;

  it("has no hole and ends when the request did", () => {
    const list = phases({
      ...base,
      queued_at: "2026-11-21T03:00:00.010Z",
      granted_at: "2026-11-21T03:00:01.010Z",
      first_token_at: "2026-11-21T03:00:01.210Z",
      done_at: "2026-11-21T03:00:03.210Z",
    });
    expect(list.map((p) => [p.name, p.startMs, p.ms])).toEqual([
      ["admission", 0, 10],
      ["waiting", 10, 1000],
      ["prefill", 1010, 200],
      ["decode", 1210, 2000],
    ]);
  });

  it("tells the time of attempts that were interrupted or failed apart from waiting", () => {
    const row = { ...base, queued_at: "2026-11-21T03:00:00.010Z", granted_at: "2026-11-21T03:00:01.010Z", done_at: "2026-11-21T03:00:03.210Z" };
    const said = (more: object) => phases({ ...row, ...more }).slice(1, 3).map((phase) => [phase.label, phase.startMs, phase.ms]);
    expect(said({ interruptions: 1, ran_before_s: 0.3 })).toEqual([["waiting for a slot", 10, 700], ["prefill that was interrupted", 710, 300]]);
    expect(said({ interruptions: 0, ran_before_s: 0.3 })[1]![0]).toBe("in replicas that failed it");
    expect(said({})[0]).toEqual(["waiting for a slot", 10, 1000]);
  });

  it("is one phase for a refusal", () => {
    expect(phases({ ...base, done_at: "2026-11-21T03:00:00.003Z" })).toEqual([{ name: "admission", label: "until the answer", startMs: 0, ms: 3 }]);
  });

  it("a whole answer has no first token, and no phase that ends with one", () => {
    const row = { ...base, granted_at: "2026-11-21T03:00:00.003Z", done_at: "2026-11-21T03:00:02.003Z", streamed: false };
    expect(phases(row).at(-1)!.label).toBe("prompt and answer, not streamed");
    expect(phases({ ...row, streamed: true }).at(-1)!.label).toBe("in the engine, without a first token");
  });
});
