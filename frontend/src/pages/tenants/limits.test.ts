import { expect, test } from "vitest";
import { limitsOf } from "./limits";

test("limits are said by whose they are, and what is not limited is not said", () => {
  expect(limitsOf({ requests_per_minute: 60, concurrency: 4, user_requests_per_minute: 3 })).toEqual(["60 requests/min, 4 at once", "each user: 3 requests/min"]);
  expect(limitsOf({ requests_per_minute: null, tokens_per_minute: null, user_tokens_per_minute: 20_000 })).toEqual(["each user: 20.0k tokens/min"]);
  expect(limitsOf({ concurrency: 2, tokens_per_day: 1_000_000 })).toEqual(["2 at once, 1.0M tokens/day"]);
  expect(limitsOf({})).toEqual([]);
});
