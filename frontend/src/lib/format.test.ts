import { expect, it, vi } from "vitest";
import { age, bytes, compact, counted, dated, duration, inZone, moment, money, percent, price, ranked, rate, text, utc, zone } from "./format";

it("counts stay short", () => {
  expect([0, 999, 9994, 12_345, 123_456, 4_200_000].map(compact)).toEqual(["0", "999", "9,994", "12.3k", "123k", "4.2M"]);
});

it("rates under ten keep a decimal, and rare things do not read as none", () => {
  expect([0, 0.0333, 0.25, 9.94, 12.4, undefined].map(rate)).toEqual(["0", "0.03", "0.25", "9.9", "12", "–"]);
});

it("durations carry the unit that fits", () => {
  expect([0.4, 640, 999.7, 4100, 12_340, 125_000, 7_320_000].map((ms) => text(duration(ms)))).toEqual([
    "0 ms",
    "640 ms",
    "1.00 s",
    "4.10 s",
    "12.3 s",
    "2 min 05 s",
    "2 h 02 min",
  ]);
  expect([119_700, 3_599_800].map((ms) => text(duration(ms)))).toEqual(["2 min", "1 h 00 min"]); // no 60th second
  expect(text(duration(undefined))).toBe("–");
});

it("a percentage is a hundred only when nothing is missing", () => {
  expect([1, 0.9996, 0.9994, 0.98, 0].map((r) => text(percent(r)))).toEqual(["100 %", "100 %", "99.9 %", "98.0 %", "0 %"]);
});

it("bytes are binary", () => {
  expect([512, 7.1e10].map((n) => text(bytes(n)))).toEqual(["512 B", "66.1 GiB"]);
});

it("ages are whole", () => {
  expect([0.4, 12.9, 120, 7200].map(age)).toEqual(["0 s", "12 s", "2 min", "2 h"]);
});

it("reasons are listed by how often", () => {
  expect(ranked({ a: 1, b: 5, c: 0 })).toEqual([["b", 5], ["a", 1]]);
});

it("a moment names the zone it is shown in, and has its instant in UTC beside it", () => {
  const at = Date.UTC(2026, 10, 21, 8, 0, 12) / 1000;
  expect(zone(at)).toMatch(/^(UTC|GMT|[A-Z]{2,5}|GMT[+-]\d+(:\d+)?)$/);
  expect(moment(at).endsWith(` ${zone(at)}`)).toBe(true);
  expect(moment(at)).toMatch(/^\d\d [A-Z][a-z]{2}, \d\d:\d\d:12 /);
  expect(dated(at)).toMatch(/^\d\d [A-Z][a-z]{2} 2026, \d\d:\d\d:12 /);
  expect(utc(at)).toBe("2026-11-21T08:00:12Z");
});

it("a column names one zone for all its moments, and none where summer time ended among them", async () => {
  vi.stubEnv("TZ", "Europe/Berlin");
  vi.resetModules();
  const { oneZone, zone: zoneThere } = await import("./format");
  const [summer, winter] = [Date.UTC(2026, 9, 24), Date.UTC(2026, 9, 26)].map((ms) => ms / 1000) as [number, number];
  expect(zoneThere(summer)).not.toBe(zoneThere(winter));
  expect(oneZone([summer, summer - 60])).toBe(zoneThere(summer));
  expect([oneZone([summer, winter]), oneZone([])]).toEqual([undefined, undefined]);
  vi.unstubAllEnvs();
});

it("a line of the server names its moments in the zone of the page", () => {
  const at = Date.UTC(2026, 10, 25, 21, 41, 27) / 1000;
  expect(inZone("No leader since 2026-11-25 21:41:27 UTC, for 10 s.")).toBe(`No leader since ${moment(at)}, for 10 s.`);
  expect(inZone("from 2026-11-25T21:41:27.123Z on")).toBe(`from ${moment(at)} on`);
  expect(inZone("trial 2026-11-25 of pool llama")).toBe("trial 2026-11-25 of pool llama");
});

it("costs in a column have the same number of decimals, and a tiny one does not become zero", () => {
  const column = [0.0043, 0.038, 0.12, 1250.5];
  expect(column.map((n) => money(n, "USD", column))).toEqual(["0.0043 USD", "0.0380 USD", "0.1200 USD", "1,250.5000 USD"]);
  expect([12.5, 0.5].map((n) => money(n, "USD", [12.5, 0.5]))).toEqual(["12.50 USD", "0.50 USD"]);
  expect([0.0000013, 0.5].map((n) => money(n, "USD", [0.0000013, 0.5]))).toEqual(["0.0000013 USD", "0.5000 USD"]);
});

it("costs line up, and prices lose no digit", () => {
  expect([12.5, 0.6993, 0.0013, 0].map((n) => money(n, "USD"))).toEqual(["12.50 USD", "0.70 USD", "0.0013 USD", "0.00 USD"]);
  expect(["0.416000", "2", "0.05"].map((n) => price(n, "USD"))).toEqual(["0.416 USD", "2.00 USD", "0.05 USD"]);
});

it("one is not many", () => {
  expect([0, 1, 2, 12_345].map((n) => counted(n, "request"))).toEqual(["0 requests", "1 request", "2 requests", "12.3k requests"]);
  expect(counted(1, "request matches", "requests match")).toBe("1 request matches");
});
