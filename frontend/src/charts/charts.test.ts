import { describe, expect, it } from "vitest";
import type { Point } from "../feed/types";
import { busiest, ceiling, columns, reach, reachAround, stack } from "./columns";
import { ColorBook, CATEGORIES, shaded, TENANT_COLORS, tenantColor } from "./palette";
import { blank, panels, plainTick, type Panel } from "./panels";
import { badgeOf, toneOf } from "./marks";

describe("columns of a chart", () => {
  it("break where nobody saw anything", () => {
    const { times, values } = columns([{ at: 1, depth: 5 }, { at: 2, depth: 6 }, { at: 60, depth: 7 }], 0, 100, [(p) => p.depth]);
    expect(times).toEqual([1, 2, 3, 60]);
    expect(values).toEqual([[5, 6, null, 7]]);
  });

  it("hold null for what a point does not know", () => {
    expect(columns([{ at: 1 }], 0, 9, [(p) => p.ttft_p95]).values).toEqual([[null]]);
  });

  it("lie on each other when stacked", () => {
    expect(stack([[1, null, null], [2, 3, null]])).toEqual([[1, 0, null], [3, 3, null]]);
  });
});

it("an axis ends at a round number over its values", () => {
  expect([0, 0.3, 1, 7, 48, 64, 1247].map(ceiling)).toEqual([1, 0.4, 1.5, 8, 50, 80, 1500]);
});

it("the busiest names are picked by weight and listed by name", () => {
  const points = [{ at: 1, refusals: { b: 1, a: 9, c: 5, z: 0 } }];
  expect(busiest(points, 0, (p, add) => Object.entries(p.refusals ?? {}).forEach(([name, n]) => add(name, n)), 2)).toEqual(["a", "c"]);
});

describe("colours", () => {
  it("of known names are theirs whoever is seen first", () => {
    const bands = ["reserved", "elastic", "spot"];
    expect(new ColorBook(bands).assign(["spot"]).get("spot")).toBe(2);
    expect([...new ColorBook(bands).assign(["q1", "elastic"])]).toEqual([["elastic", 1], ["q1", 3]]);
  });

  it("stay with their names while others come and go", () => {
    const book = new ColorBook();
    const before = book.assign(["acme", "birch"]);
    const after = book.assign(["aaron", "acme", "birch"]);
    expect(after.get("acme")).toBe(before.get("acme"));
    expect(after.get("birch")).toBe(before.get("birch"));
  });

  it("are kept for a name that is away", () => {
    const book = new ColorBook();
    const before = book.assign(["spot band"]);
    expect(book.assign(["elastic band"]).get("elastic band")).not.toBe(before.get("spot band"));
    expect(book.assign(["elastic band", "spot band"]).get("spot band")).toBe(before.get("spot band"));
  });

  it("are all different for as many names as there are colours", () => {
    const book = new ColorBook();
    book.assign(["x", "y", "z"]);
    const names = Array.from({ length: CATEGORIES }, (_, i) => `t${i}`);
    expect(new Set(book.assign(names).values()).size).toBe(CATEGORIES);
  });
});

describe("tenants' colours", () => {
  it("are where the server put them, whoever is shown beside them, and differ by the background only", () => {
    const slots = { acme: 0, birch: 1 };
    expect(tenantColor("acme", slots, false)).not.toBe(tenantColor("birch", slots, false));
    expect(tenantColor("acme", slots, false)).toBe(tenantColor("acme", { acme: 0 }, false));
    expect(tenantColor("gone", {}, false)).toBe(tenantColor("gone", slots, false));
  });

  it("are never those of good and bad", () => {
    const hue = (color: string): number => {
      const [r, g, b] = [1, 3, 5].map((i) => Number.parseInt(color.slice(i, i + 2), 16) / 255) as [number, number, number];
      const [most, least] = [Math.max(r, g, b), Math.min(r, g, b)];
      const at = most === r ? ((g - b) / (most - least)) % 6 : most === g ? (b - r) / (most - least) + 2 : (r - g) / (most - least) + 4;
      return (at * 60 + 360) % 360;
    };
    for (const dark of [false, true])
      for (let slot = 0; slot < TENANT_COLORS; slot++) {
        const at = hue(tenantColor("t", { t: slot }, dark));
        expect(at > 80 && at < 170, `green: ${slot}`).toBe(false);
        expect(at < 14 || at > 346, `red: ${slot}`).toBe(false);
      }
  });

  it("are shaded for a tenant's further entitlements", () => {
    expect(shaded("#0072b2", 0, false)).toBe("#0072b2");
    expect(new Set([0, 1, 2].map((place) => shaded("#0072b2", place, false))).size).toBe(3);
  });
});

describe("the panels", () => {
  const context = { from: 0, to: 100, dark: false, slots: {}, owners: {}, reasons: new ColorBook(), tiers: new ColorBook(), backends: new ColorBook(), parts: new ColorBook() };

  it("stack tenants up to the total, with the rest as others", () => {
    const tenants = Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`t${i}`, { waiting: i + 1, running: 0 }]));
    const depth = Object.values(tenants).reduce((sum, t) => sum + t.waiting, 0);
    const [queue] = panels({ ...context, points: [{ at: 1, depth, tenants }] });
    expect(queue!.series).toHaveLength(8);
    expect(queue!.series.at(-1)!.label).toBe("others");
    expect(queue!.values.reduce((sum, column) => sum + column[0]!, 0)).toBe(depth);
  });

  it("stack entitlements up to the total, also those whose rows the server left out", () => {
    const entitlements = { a: { tenant: "t", running: 3 }, b: { tenant: "u", running: 2 } };
    const running = panels({ ...context, points: [{ at: 1, running: 12, slots: 16, entitlements, rest: { tenant: "", running: 7 } }] }).find((panel) => panel.id === "running");
    const stacked = running!.values.filter((_, i) => running!.series[i]!.stacked);
    expect(stacked.map((column) => column[0])).toEqual([3, 2, 7]);
  });

  it("show refusals whose reason the history does not know as such", () => {
    const refusals = panels({ ...context, points: [{ at: 1, refused: 2 }, { at: 2, refused: 2, refusals: { concurrency: 120 } }] }).find((p) => p.id === "refusals")!;
    expect(refusals.series.map((s) => s.label)).toEqual(["concurrency", "other or not recorded"]);
    expect(refusals.values).toEqual([[null, 2], [2, 0]]);
  });

  it("split each resource by entitlement, with what there is of it", () => {
    const entitlements = { "acme-premium": { tokens: 100, kv: 40, running: 3 }, "birch-standard": { tokens: 50, running: 1 } };
    const list = panels({ ...context, points: [{ at: 1, slots: 8, kv_tokens: 90, entitlements }] });
    const of = (id: string) => list.find((p) => p.id === id)!;
    expect(of("running").series.map((s) => s.label)).toEqual(["acme-premium", "birch-standard", "slots"]);
    expect(of("running").values).toEqual([[3], [1], [8]]);
    expect(of("by-kv").values).toEqual([[40], [90]]);
    expect(of("by-tokens").values).toEqual([[100], [50]]);
  });

  it("draw each tier's percentile with its target, and leave out tiers without either", () => {
    const tiersNow = { premium: { ttft_s: 1 }, batch: { ttlt_s: 600 } };
    const list = panels({ ...context, tiersNow, points: [{ at: 1, tiers: { premium: { violations: 6, total: 9, ttft_p95: 640 } } }] });
    const ttft = list.find((p) => p.id === "ttft-tiers")!;
    expect(ttft.series.map((s) => s.label)).toEqual(["premium", "premium target"]);
    expect(ttft.values).toEqual([[640], [1000]]);
    expect(list.find((p) => p.id === "violations")!.values).toEqual([[0], [0.1]]);
  });

  it("split what waits by the policy's own queues; one that is empty now is zero, not unknown", () => {
    const points: Point[] = [{ at: 1, depth: 12, parts: { "elastic band": { waiting: 9 }, "spot band": { waiting: 3 } } }, { at: 2, depth: 3, parts: { "spot band": { waiting: 3 } } }];
    const parts = panels({ ...context, points }).find((p) => p.id === "parts")!;
    expect(parts.series.map((one) => one.label)).toEqual(["elastic band", "spot band"]);
    expect(parts.values).toEqual([[9, 0], [3, 3]]);
  });

  it("show debt of elastic entitlements only, below zero as well", () => {
    const entitlements = { a: { debt: -0.4, weight: 20 }, b: { debt: 0.9, weight: 600 } };
    const debt = panels({ ...context, elastic: ["a"], points: [{ at: 1, entitlements }] }).find((p) => p.id === "debt")!;
    expect([debt.series.map((s) => s.label), debt.values]).toEqual([["a"], [[-0.4]]]);
  });

  it("say that nothing was only of a period that was seen from its beginning to its end, without a break", () => {
    const said = (ats: readonly number[]) => panels({ ...context, from: 0, to: 10, points: ats.map((at) => ({ at, depth: 0, tenants: {} })) }).find((p) => p.id === "queue")!.empty;
    expect(said([1, 2, 3, 5, 7, 9])).toBe("Nothing waited in this period.");
    for (const broken of [[6, 7, 8, 9], [1, 2, 8, 9], [1, 2, 3]]) expect(said(broken)).toBe("None was seen, but a part of this time is not known.");
    for (const outside of [[], [-9, 12]]) expect(said(outside)).toBe("Nothing is known of this time.");
    expect(panels({ ...context, points: [] }).find((p) => p.id === "ttft-tiers")!.empty).toContain("No tier of this pool has a target");
  });

  it("do not say that no tier has a target where one has, and nothing was measured", () => {
    const said = (tiersNow: Record<string, { ttft_s?: number }>) =>
      panels({ ...context, from: 0, to: 10, tiersNow, points: [1, 2, 3, 5, 7, 9].map((at) => ({ at, tiers: { premium: {} } })) }).find((p) => p.id === "ttft-tiers")!.empty;
    expect(said({ premium: { ttft_s: 1 } })).toBe("No streamed answer of such a tier began in this period.");
    expect(said({ premium: {} })).toContain("No tier of this pool has a target");
  });

  it("break a line of coarse steps only where steps are missing", () => {
    const points = [0, 60, 120, 400].map((at) => ({ at, in: 1, out: 1 }));
    expect(panels({ ...context, to: 900, step: 60, points }).find((p) => p.id === "tokens")!.values[0]).toEqual([1, 1, 1, null, 1]);
  });

  it("draw something for a pool without tenants or points", () => {
    for (const panel of panels({ ...context, points: [] })) expect(panel.times).toEqual([]);
  });
});

it("an axis around zero has no row of zeros where all is next to nothing", () => {
  expect(reachAround(-0.001, 0.002)).toBe(0.06);
  expect(reachAround(-0.3, 0.1)).toBe(0.4);
});

it("an axis reaches up to a limit, unless the rest would lie flat", () => {
  expect(reach(10, [[null, 48]])).toBe(48);
  expect(reach(0.5, [[1, 1], [5, 5]])).toBe(1);
  expect(reach(9, [])).toBe(9);
  expect(reach(0, [[600]])).toBe(600);
});

it("figures of an axis carry no zeros that only others need", () => {
  expect(["0.50x", "1.00 s", "1.50 s", "5,000", "100 %", "0.05", "20k", "1.0M"].map(plainTick)).toEqual(["0.5x", "1 s", "1.5 s", "5,000", "100 %", "0.05", "20k", "1M"]);
});

it("an axis of nothing known has no figures; zero is known", () => {
  const of = (values: (number | null)[][]) => blank({ values } as unknown as Panel);
  expect([of([[null, null], [null]]), of([[null, 0]]), of([])]).toEqual([true, false, true]);
});

it("an event that mends is not shown as a warning", () => {
  const tone = (kind: string, line: string) => toneOf({ kind, line } as Parameters<typeof toneOf>[0]);
  expect([tone("backend", "Replica a is ready, was probing"), tone("backend", "Replica a is ejected, was ready"), tone("alert", "It waits."), tone("leader", "w leads, epoch 2")]).toEqual(["good", "bad", "bad", "plain"]);
  expect([badgeOf({ kind: "backend", line: "Replica a is ready, was probing" }), badgeOf({ kind: "alert", line: "It waits." })]).toEqual(["plain", "bad"]);
});
