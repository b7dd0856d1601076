import { expect, it } from "vitest";
import { completions, parse, written } from "./query";

const now = new Date(2026, 10, 23, 9, 30);
const at = (hours: number, minutes: number, day = 23): string => new Date(2026, 10, day, hours, minutes).toISOString();

it("reads spans, names, keys and times of the day", () => {
  expect(parse("waited:>8s tenant:acme at:08:40..08:55 key:qm-9s.secret reason:queue_timeout slo:missed", now)).toEqual({
    filters: { waited_over: "8", tenant: "acme", from: at(8, 40), to: at(8, 55), key_id: "9s", reason: "queue_timeout", slo_met: "false" },
    faults: [],
  });
  expect(parse("ttft:>500ms total:<2min", now).filters).toEqual({ ttft_over: "0.5", total_under: "120" });
});

it("takes one minute where one time is given, and yesterday where it is still to come", () => {
  expect(parse("at:08:52", now).filters).toEqual({ from: at(8, 52), to: at(8, 53) });
  expect(parse("at:23:10..23:20", now).filters).toEqual({ from: at(23, 10, 22), to: at(23, 20, 22) });
});

it("takes a bare word as the beginning of an id, and names what it cannot read", () => {
  expect(parse("req_12", now).filters).toEqual({ request_id: "req_12" });
  const { filters, faults } = parse("waited:8 colour:red at:9..8 tenant:", now);
  expect(filters).toEqual({});
  expect(faults).toHaveLength(4);
  expect(faults[0]).toContain(">8s");
});

it("writes filters as they would be typed", () => {
  const filters = { tenant: "acme", waited_over: "8", slo_met: "true", key_id: "9s", from: at(8, 40), to: at(8, 55) };
  expect(parse(written(filters), now).filters).toEqual(filters);
});

it("completes terms and values", () => {
  expect(completions("tenant:acme wa", {})).toEqual(["tenant:acme waited:"]);
  expect(completions("tenant:ac", { tenant: ["acme", "globex"] })).toEqual(["tenant:acme"]);
  expect(completions("slo:", {})).toEqual(["slo:met", "slo:missed"]);
});
