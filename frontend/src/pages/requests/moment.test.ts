import { expect, it } from "vitest";
import { thenOf } from "./Moment";

it("a moment whose requests are not all in the ledger is never told as empty", () => {
  expect(thenOf({ waiting: 0, running: 0 }, true)).toBe("No request waited, 0 ran.");
  expect(thenOf({ waiting: 0, running: 0 }, false)).toBe("Which requests waited and ran then is unknown.");
  expect(thenOf({ waiting: 1, running: 12 }, true)).toBe("1 request waited, 12 ran.");
  expect(thenOf({ waiting: 1, running: 12 }, false)).toBe("At least 1 waited, at least 12 ran.");
});
