import { expect, it } from "vitest";
import type { ResultRow } from "../../api/operate";
import { apart, axis, ended, FIGURES, figuresOf, groupName, judged, lines, policyText, progress, refusals, shownFigure, shownInterval, signedFigure, trustOf } from "./lab";

const row = (policy: string, group: string, mean: number, more: Partial<ResultRow> = {}): ResultRow => ({ policy, group, figure: "slo", variants: 3, mean, low: mean - 1, high: mean + 1, ...more });
const slo = FIGURES[0]!;
const ttft = FIGURES.find(({ id }) => id === "ttft_p50")!;

it("groups come as all, tiers, tenants, and policies in the order they were asked in", () => {
  const found = lines([row("fifo", "tenant:acme", 1), row("now", "tier:premium", 2), row("fifo", "all", 3), row("now", "all", 4), row("now", "all", 9, { figure: "requests" })], "slo", ["now", "fifo"]);
  expect([...found.keys()]).toEqual(["all", "tier:premium", "tenant:acme"]);
  expect(found.get("all")!.map((line) => [line.policy, line.own.mean])).toEqual([["now", 4], ["fifo", 3]]);
  expect(["all", "tier:premium", "tenant:a:b"].map(groupName)).toEqual(["all requests", "premium", "a:b"]);
});

it("an axis shows small differences of shares, and begins at nothing for times", () => {
  const of = (means: number[]) => [...lines(means.map((mean, i) => row(`p${i}`, "all", mean)), "slo", ["p0", "p1"]).values()].flat();
  expect(axis(of([96, 98]), slo)).toEqual([90, 100]);
  expect(axis(of([40, 98]), slo)).toEqual([0, 100]);
  expect(axis(of([1, 3]), ttft)).toEqual([0, 4.2]);
  expect(axis([], ttft)).toEqual([0, 1]);
});

it("a difference is for the better only where it is sure, by what the figure wants", () => {
  const difference = { mean: 2, low: 1, high: 3, sure: true };
  expect([judged({ difference }, slo), judged({ difference }, ttft), judged({ difference: { ...difference, sure: false } }, slo), judged({}, slo)]).toEqual(["better", "worse", "unsure", null]);
  expect(judged({ difference: { mean: 0, low: 0, high: 0, sure: false } }, slo)).toBe("same");
});

it("figures carry units and signs", () => {
  expect([shownFigure(96.44, "%"), shownFigure(0.123, "s"), shownFigure(12.34, "s"), signedFigure(1.5, "s"), signedFigure(-1.5, "s"), signedFigure(-11.14, "%")]).toEqual(["96.4 %", "0.12 s", "12.3 s", "+1.50 s", "−1.50 s", "−11.1 points"]);
});

it("tells how far a run is, and writes policies as the lab reads them", () => {
  expect(progress({ state: "running", done: 3, total: 10 })).toEqual({ ratio: 0.3, text: "3 of 10 replays" });
  expect(progress({ state: "queued", done: 0, total: 10 }).text).toBe("waiting for a worker");
  expect([ended({ state: "running" }), ended({ state: "failed" })]).toEqual([false, true]);
  expect([policyText("fifo", {}), policyText("ewsjf", { a: 1, b: 0.5 })]).toEqual(["fifo", "ewsjf:a=1,b=0.5"]);
});

it("an interval of a share ends where shares end", () => {
  expect(shownInterval({ mean: 96, low: 92.5, high: 100.3 }, "%")).toBe("92.5 % to 100.0 %");
  expect(shownInterval({ mean: 96, low: -66.6, high: 264.5 }, "s")).toBe("0.00 s to 264.5 s");
  expect(shownInterval({ mean: 96, low: 92.5, high: 112.3 }, "s")).toBe("92.5 s to 112.3 s");
});

it("beside simulated figures stands how far they are from live ones, and unknown is not shown as good", () => {
  const trust = { at: "2026-11-22T10:00:00Z", requests: 420, figures: {}, worst: 0.08, trusted: true };
  expect(trustOf({ pool: "chat", trust })).toMatchObject({ tone: "plain", label: "error up to 8.0 %" });
  expect(trustOf({ pool: "chat", trust: { ...trust, worst: 0.31, trusted: false } })).toMatchObject({ tone: "warn", label: "error up to 31.0 %" });
  expect(trustOf({ pool: "chat", trust: { ...trust, points: 1.25 } }).text).toContain("SLO attainment by at most 1.3 points");
  expect(trustOf({ pool: "chat", trust }).text).not.toContain("attainment");
  expect(trustOf({ pool: "chat", trust: null })).toMatchObject({ tone: "plain", label: "error unknown" });
  expect(trustOf({ pool: "chat" }).tone).toBe("plain");
  expect([apart(trust), apart({ worst: 0.204, points: 2.14 })]).toEqual(["8.0 %", "20.4 % and 2.1 points"]);
});

it("a run offers the figures it has, and says why requests were refused", () => {
  const old = [row("now", "all", 90)];
  expect(figuresOf(old).map(({ id }) => id)).toEqual(["slo"]);
  const found = [row("now", "all", 3, { figure: "refused_queue_full" }), row("now", "all", 12, { figure: "refused_token_budget" }), row("now", "tier:premium", 50, { figure: "refused_queue_full" }), row("fifo", "all", 0, { figure: "refused_queue_full" })];
  expect(refusals(found, ["now", "fifo"])).toEqual([
    { policy: "now", text: `token_budget ${shownFigure(12, "%")}, queue_full ${shownFigure(3, "%")}` },
    { policy: "fifo", text: "none" },
  ]);
});
