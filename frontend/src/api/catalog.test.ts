import { afterEach, expect, it, vi } from "vitest";
import { list, MOST_ROWS } from "./catalog";

/** A catalog of so many rows; a row is gone after so many answers. */
function serving(rows: number, lostAfter = Infinity) {
  const asked: string[] = [];
  vi.stubGlobal("fetch", (path: string) => {
    const query = new URL(path, "http://test").searchParams;
    const [limit, offset] = [Number(query.get("limit")), Number(query.get("offset") ?? 0)];
    const there = Array.from({ length: asked.length >= lostAfter ? rows - 1 : rows }, (_, i) => i + rows - (asked.length >= lostAfter ? rows - 1 : rows));
    asked.push(`${offset}+${limit}`);
    return Promise.resolve(new Response(JSON.stringify({ count: there.length, next: null, results: there.slice(offset, offset + limit) })));
  });
  return asked;
}
afterEach(() => vi.unstubAllGlobals());

it("a list is read to its end, since it is sorted and searched in the page", async () => {
  const asked = serving(4312);
  const { count, results } = await list<number>("keys");
  expect([count, results.length, new Set(results).size]).toEqual([4312, 4312, 4312]);
  expect(asked).toEqual(["0+1000", "1000+1000", "2000+1000", "3000+1000", "4000+1000"]);
});

it("a very long list ends somewhere, and says how many there are", async () => {
  serving(43_120);
  const { count, results } = await list<number>("keys");
  expect([count, results.length]).toEqual([43_120, MOST_ROWS]);
});

it("a list that changes while its pages are read is read again", async () => {
  serving(2500, 2);
  const { count, results } = await list<number>("keys");
  expect([count, results.length, results[0]]).toEqual([2499, 2499, 1]);
});

it("who asks for one row gets one answer", async () => {
  const asked = serving(4312);
  expect((await list("keys", { limit: "1" })).count).toBe(4312);
  expect(asked).toEqual(["0+1"]);
});
