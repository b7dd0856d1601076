import { expect, it } from "vitest";
import { browserOf } from "./agents";

it("a session's browser is named as people call it", () => {
  expect(
    [
      "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36",
      "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36 Edg/156.0.0.0",
      "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/19.1 Safari/605.1.15",
      "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/19.0 Mobile/15E148 Safari/604.1",
      "Mozilla/5.0 (X11; Ubuntu; Linux x86_64; rv:151.0) Gecko/20100101 Firefox/151.0",
    ].map(browserOf),
  ).toEqual(["Chrome 156 on Linux", "Edge 156 on Windows", "Safari 19 on macOS", "Safari 19 on iOS", "Firefox 151 on Linux"]);
});

it("what is not known keeps its own name, and what has none says so", () => {
  expect(["", "curl/8.5.0", "x".repeat(60)].map(browserOf)).toEqual(["not named", "curl/8.5.0", `${"x".repeat(39)}…`]);
});
