import { expect, it } from "vitest";
import { carried, spanOf, withoutSpan } from "./carried";

const span = { from: 1_790_000_000, to: 1_790_000_600 };

it("a range of one page is the same range on the next", () => {
  for (const path of ["/", "/requests"]) {
    const url = new URL(carried(path, span), "http://x");
    expect(spanOf(url.pathname, url.searchParams)).toEqual(span);
  }
  const events = new URL(carried("/events", span), "http://x");
  expect(spanOf(events.pathname, events.searchParams)).toEqual({ from: 1_790_000_300 - 900, to: 1_790_000_300 + 900 });
});

it("a zoom of an object's page goes along, and no page of the header leads back to the object", () => {
  const zoom = new URLSearchParams({ from: new Date(span.from * 1000).toISOString(), to: new Date(span.to * 1000).toISOString() });
  expect(spanOf("/pools/llama", zoom)).toEqual(span);
  expect(spanOf("/pools", zoom)).toBeNull();
  expect(carried("/pools", span)).toBe("/pools");
});

it("what follows the present, and pages without a range, carry nothing", () => {
  expect(spanOf("/", new URLSearchParams("window=15"))).toBeNull();
  expect(carried("/lab", span)).toBe("/lab");
  expect(carried("/requests", null)).toBe("/requests");
});

it("a range can be left while the rest of the query stays", () => {
  expect(withoutSpan("/requests", new URLSearchParams("tenant=acme&from=a&to=b"))).toBe("/requests?tenant=acme");
  expect(withoutSpan("/", new URLSearchParams("at=5"))).toBe("/");
});
