import { expect, it } from "vitest";
import type { FactorLine } from "../../api/operate";
import { correctedLimits, errorPanels, factorPanel, steps, verdict } from "./data";

const point = (at: number, ratio: number | null = 1) => ({ at, requests: 3, ratio, mae: 10, coverage90: 0.8 });
const line = (name: string, points: [number, number][], more: Partial<FactorLine> = {}): FactorLine => ({ pool: "llama", scope: "tenant", name, category: "code", observed: 1, points, ...more });

it("a stretch without requests breaks the line", () => {
  const { times, values } = steps({ step: "minute", points: [point(0), point(120), point(3600, 2)] }, [(p) => p.ratio]);
  expect(times).toEqual([0, 120, 180, 3600]);
  expect(values).toEqual([[1, 1, null, 2]]);
});

it("a target lies beside what was seen", () => {
  const [ratio, coverage, mae] = errorPanels({ from: "", to: "", step: "minute", points: [point(60, 1.5)], factors: [] }, false);
  expect(ratio!.values).toEqual([[1.5], [1]]);
  expect(coverage!.values).toEqual([[0.8], [0.9]]);
  expect(mae!.values).toEqual([[10]]);
});

it("lines of one scope share an axis of time, and name their pool only where there are several", () => {
  const lines = [line("acme", [[0, 1], [300, 1.2]]), line("globex", [[300, 0.5]]), line("", [[0, 2]], { scope: "category" })];
  const panel = factorPanel(lines, "tenant", false);
  expect(panel.times).toEqual([0, 300]);
  expect(panel.values).toEqual([[1, 1.2], [null, 0.5]]);
  expect(panel.series.map((s) => s.label)).toEqual(["acme · code", "globex · code"]);
  expect(factorPanel([...lines, line("acme", [], { pool: "qwen" })], "tenant", false).series[0]!.label).toBe("llama · acme · code");
  expect(factorPanel(lines, "category", false).series[0]!.label).toBe("code");
});

it("says what is off, and nothing without figures", () => {
  expect(verdict(undefined, undefined)).toBeNull();
  expect([verdict(1.5, 0.9), verdict(0.5, 0.9), verdict(1.0, 0.7)].map((v) => v!.tone)).toEqual(["warn", "warn", "warn"]);
  expect(verdict(1.05, 0.91)).toEqual({ tone: "good", text: "Predictions are accurate" });
});

it("only limits that were corrected are named, the furthest first", () => {
  const of = (tenant: string, factor: number) => ({ tenant, source: "similar", factor });
  expect(correctedLimits([of("a", 1), of("b", 1.002), of("c", 1.1), of("d", 0.5)])).toBe("Corrected limits: d, similar: 0.50x; c, similar: 1.10x.");
  expect(correctedLimits([of("a", 1)])).toBe("No limit had to be corrected.");
  expect(correctedLimits(Array.from({ length: 10 }, (_, i) => of(`t${i}`, 2)))).toMatch(/; and 2 more\.$/);
});
