import { beforeEach, describe, expect, it, vi } from "vitest";
import { Pace } from "./pace";

const FRAME_MS = 16;
let drawn: number[];
let pace: Pace;

beforeEach(() => {
  vi.useFakeTimers({ now: 0 });
  drawn = [];
  pace = new Pace(() => drawn.push(Date.now()), {
    now: Date.now,
    after: (ms, action) => setTimeout(action, ms),
    frame: (action) => setTimeout(action, FRAME_MS),
  });
});

describe("what is shown", () => {
  it("is drawn at most four times a second where forty pools change at moments of their own", () => {
    for (let change = 0; change < 40 * 5; change++) {
      pace.soon();
      vi.advanceTimersByTime(25);
    }
    expect(drawn.length).toBeLessThanOrEqual(4 * 5);
    expect(drawn.length).toBeGreaterThan(10);
  });

  it("follows a change after a quiet time in the next frame", () => {
    for (const second of [1, 2, 3]) {
      vi.setSystemTime(second * 1000);
      pace.soon();
      vi.advanceTimersByTime(FRAME_MS);
    }
    expect(drawn).toEqual([1016, 2016, 3016]);
  });

  it("ends with the last change", () => {
    pace.soon();
    vi.advanceTimersByTime(FRAME_MS);
    pace.soon();
    vi.advanceTimersByTime(1000);
    expect(drawn).toHaveLength(2);
  });
});
