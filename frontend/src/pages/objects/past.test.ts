import { expect, it } from "vitest";
import type { Happened } from "../../api/events";
import { eventsAbout, kept, rangeOf, requestsOf, spanOf, zoomOf } from "./past";

it("the time shown is whole steps of its charts, so that looking again asks the same question", () => {
  const span = spanOf("1", Date.parse("2026-11-23T10:00:30Z"));
  expect(span).toEqual({ from: "2026-11-23T09:01:00.000Z", to: "2026-11-23T10:01:00.000Z" });
  expect(spanOf("1", Date.parse("2026-11-23T10:00:59Z"))).toEqual(span);
  expect(spanOf("24", Date.parse("2026-11-23T10:00:59Z"))).toEqual({ from: "2026-11-22T10:24:00.000Z", to: "2026-11-23T10:24:00.000Z" });
  expect([rangeOf("168"), rangeOf("12"), rangeOf(null)]).toEqual(["168", "24", "24"]);
});

it("an object leads to its requests with its filter, and to nothing that was not asked", () => {
  expect(requestsOf({ key_id: "k2iT", tenant: "", from: "2026-11-23T09:01:00.000Z" })).toBe("/requests?key_id=k2iT&from=2026-11-23T09%3A01%3A00.000Z");
});

it("events are about an object that they are of or name as a word", () => {
  const event = (subject: string, line: string) => ({ at: "", kind: "backend", subject, line, actor: "", pool: "" }) as unknown as Happened;
  const events = [event("gpu-1", "ejected"), event("7", "Backend gpu-1 of pool llama is ejected: it fails"), event("gpu-11", "gpu-11 drains")];
  expect(eventsAbout(events, "gpu-1")).toEqual(events.slice(0, 2));
  expect(eventsAbout(events, undefined)).toEqual(events);
});

it("whether a promise is kept is not said where either side is unknown", () => {
  expect([kept(0.4, 1), kept(1.2, 1), kept(null, 1), kept(1, undefined)]).toEqual([true, false, undefined, undefined]);
});

it("a zoom is kept in the address, and what is no time is none", () => {
  expect(zoomOf(new URLSearchParams("from=2026-11-23T09:00:00Z&to=2026-11-23T09:10:00Z"))).toEqual({ from: "2026-11-23T09:00:00.000Z", to: "2026-11-23T09:10:00.000Z" });
  expect([zoomOf(new URLSearchParams("from=2026-11-23T09:10:00Z&to=2026-11-23T09:00:00Z")), zoomOf(new URLSearchParams("from=soon")), zoomOf(new URLSearchParams())]).toEqual([null, null, null]);
});
