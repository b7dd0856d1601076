import { describe, expect, it } from "vitest";
import { mergePatch } from "./patch";

describe("a merge patch", () => {
  it("merges objects by key, removes by null and replaces the rest (RFC 7396)", () => {
    const target = { a: 1, b: { c: 2, d: 3 }, e: "x" };
    expect(mergePatch(target, { a: null, b: { c: null, f: 4 }, g: { h: null, i: 5 } })).toEqual({ b: { d: 3, f: 4 }, e: "x", g: { i: 5 } });
    expect(target).toEqual({ a: 1, b: { c: 2, d: 3 }, e: "x" });
  });

  it("replaces a value by an object and an object by a value", () => {
    expect(mergePatch({ a: 1, b: { c: 1 } }, { a: { x: 1 }, b: 2 })).toEqual({ a: { x: 1 }, b: 2 });
  });

  it("keeps the identity of what did not change, so that nothing unchanged is drawn again", () => {
    const target = { a: { x: 1 }, b: { y: 1 } };
    const next = mergePatch(target, { a: { x: 2 }, b: { y: 1 } });
    expect(next.a).not.toBe(target.a);
    expect(next.b).toBe(target.b);
    expect(mergePatch(target, { a: { x: 1 }, z: null })).toBe(target);
  });

  it("treats a tenant called __proto__ as a name", () => {
    const patch = JSON.parse('{"__proto__": {"waiting": 3}}') as Record<string, unknown>;
    const next = mergePatch({}, patch);
    expect(Object.keys(next)).toEqual(["__proto__"]);
    expect(({} as Record<string, unknown>)["waiting"]).toBeUndefined();
    expect((next as Record<string, unknown>)["waiting"]).toBeUndefined();
  });
});
