import { describe, expect, it } from "vitest";
import type { LedgerRow } from "../../api/requests";
import { grown, KEPT } from "./follow";

const rows = (...ids: number[]): LedgerRow[] => ids.map((id) => ({ request_id: `r${id}` }) as LedgerRow);
const down = (from: number, count: number): number[] => Array.from({ length: count }, (_, i) => from - i);

describe("requests that are followed", () => {
  it("stand on top of those before them, and one that was sent again stands once", () => {
    const first = grown(undefined, { results: rows(2, 1), place: "a", whole: true });
    const next = grown(first, { results: rows(4, 3, 2), place: "b", whole: true });
    expect(next.rows.map((row) => row.request_id)).toEqual(["r4", "r3", "r2", "r1"]);
    expect(next.place).toBe("b");
  });

  it("are at most so many; the oldest go, and the page knows", () => {
    const first = grown(undefined, { results: rows(...down(KEPT, KEPT)), place: "a", whole: true });
    expect(first.cut).toBe(false);
    const next = grown(first, { results: rows(KEPT + 2, KEPT + 1), place: "b", whole: true });
    expect([next.rows.length, next.rows[0]!.request_id, next.rows.at(-1)!.request_id, next.cut]).toEqual([KEPT, `r${KEPT + 2}`, "r3", true]);
  });

  it("have a gap below the last that was sent where more ended than are sent, until that row goes", () => {
    const first = grown(undefined, { results: rows(1), place: "a", whole: true });
    const behind = grown(first, { results: rows(...down(900, 200)), place: "b", whole: false });
    expect(behind.gaps).toEqual(["r701"]);
    expect(grown(behind, { results: [], place: "c", whole: true }).gaps).toEqual(["r701"]);
    const later = grown(behind, { results: rows(...down(1300, 400)), place: "d", whole: true });
    expect(later.gaps).toEqual([]);
  });

  it("begin with the newest few, which is no gap", () => {
    expect(grown(undefined, { results: rows(9, 8), place: "a", whole: true }).gaps).toEqual([]);
  });
});
