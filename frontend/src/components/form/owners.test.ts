import { describe, expect, it } from "vitest";
import { rowAt } from "./owners";

describe("the row at a path of the API", () => {
  it("has the kind that its resource has in Kubernetes", () => {
    expect(rowAt("pools/llama")).toEqual({ kind: "TokenPool", name: "llama" });
    expect(rowAt("entitlements/search-llama")).toEqual({ kind: "TokenEntitlement", name: "search-llama" });
  });

  it("is none where a list, an action or another collection is meant", () => {
    for (const path of ["pools", "pools/", "pools/llama/policy", "quotas/1", "constructor/x", ""]) expect(rowAt(path)).toBeUndefined();
  });
});
