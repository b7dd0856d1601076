import { expect, it } from "vitest";
import { chosen, columnsText } from "./columns";

it("the usual columns need no words in the address", () => {
  expect(columnsText(chosen(null))).toBe("");
  expect(chosen(null)).toContain("waited");
});

it("chosen columns keep their order, and unknown ones are left out", () => {
  expect(chosen("ttft,colour,tenant")).toEqual(["tenant", "ttft"]);
  expect(columnsText(["ttft", "tenant"])).toBe("tenant,ttft");
  expect(chosen(columnsText([]))).toEqual([]);
});
