import { expect, it } from "vitest";
import { instant } from "../../components/form/form";
import { between, newcomerProblem, policyName, supposed, triedOf, windowProblem, yesterday } from "./supposed";

it("a number out of bounds is told from none, and nothing odd becomes a default", () => {
  expect([between("", 0.1, 10), between(" 1.5 ", 0.1, 10)]).toEqual([null, 1.5]);
  for (const odd of ["0", "11", "-1", "abc", "1,5", "NaN", "Infinity"]) expect(between(odd, 0.1, 10), odd).toBeUndefined();
  expect([between("3", 1, 64, true), between("2.5", 1, 64, true)]).toEqual([3, undefined]);
});

it("a window begins before it ends and is 31 days at most", () => {
  expect(windowProblem("2026-11-22T14:00", "2026-11-22T16:00")).toBe("");
  expect(windowProblem("2026-11-22T16:00", "2026-11-22T14:00")).toContain("before it begins");
  expect(windowProblem("2026-11-22T14:00", "2026-11-22T14:00")).toContain("before it begins");
  expect(windowProblem("2026-01-01T00:00", "2026-03-01T00:00")).toContain("31 days");
  expect(windowProblem("", "2026-11-22T14:00")).toContain("begins and ends");
  expect([instant(""), instant("soon"), instant("2026-11-22T14:00")]).toEqual([undefined, undefined, new Date("2026-11-22T14:00").toISOString()]);
});

it("yesterday's afternoon stands there, which is a window", () => {
  expect(yesterday(new Date(2026, 10, 22, 9, 30))).toEqual(["2026-11-21T14:00", "2026-11-21T16:00"]);
  expect(windowProblem(...yesterday(new Date()))).toBe("");
});

it("a new tenant has a name that nobody has, somebody whom it is like, and bounded requests", () => {
  expect(newcomerProblem("initech", "acme-llama", "", ["acme-llama"])).toBe("");
  expect(newcomerProblem("Initech", "acme-llama", "", [])).toContain("lower-case");
  expect(newcomerProblem("acme-llama", "acme-llama", "", ["acme-llama"])).toContain("of that name");
  expect(newcomerProblem("initech", "", "", [])).toContain("Choose whose");
  expect(newcomerProblem("initech", "acme-llama", "100", [])).toContain("0.1 to 10");
});

it("a run says what it supposes, and one of an earlier release that it supposes nothing", () => {
  const old = { policies: ["now"], variants: 5, replicas: 0, slos: null };
  expect(supposed(old)).toEqual([]);
  expect(supposed({ ...old, load: 1, lost: [], newcomers: [], objects: [] })).toEqual([]);
  const objects = [{ kind: "entitlement" as const, name: "acme-llama", values: { concurrency: 4 } }];
  const newcomers = [{ name: "initech", like: "acme-llama", times: 0.5 }];
  expect(supposed({ ...old, replicas: 1, slos: { premium: { ttft_s: 1 } }, load: 1.5, lost: ["gpu-1"], newcomers, objects })).toEqual([
    "load × 1.5",
    "1 replica",
    "without gpu-1",
    "new tenant initech, 0.5 × acme-llama",
    "entitlement acme-llama: concurrency 4",
    "SLOs of premium",
  ]);
  expect(triedOf([{ ...objects[0]!, was: { concurrency: 8 } }])).toEqual(objects);
  expect(["now", "unchanged", "fifo"].map(policyName)).toEqual(["active policy", "as it was", "fifo"]);
});
