import { describe, expect, it } from "vitest";
import { Turns } from "./turns";

/** Frames by hand; each piece takes 4 ms. */
function world() {
  let clock = 0;
  const next: (() => void)[] = [];
  const done: string[] = [];
  const turns = new Turns({ now: () => clock, next: (turn) => next.push(turn) });
  const piece = (name: string) => () => {
    clock += 4;
    done.push(name);
  };
  return { turns, done, piece, frame: () => next.splice(0).forEach((turn) => turn()), ahead: () => next.length };
}

describe("work in turns", () => {
  it("is spread over frames", () => {
    const { turns, done, piece, frame, ahead } = world();
    for (const name of ["a", "b", "c"]) turns.ask(piece(name));
    expect(done).toEqual([]);
    frame();
    expect(done).toEqual(["a", "b"]);
    frame();
    expect(done).toEqual(["a", "b", "c"]);
    expect(ahead()).toBe(0);
  });

  it("is done once however often it was asked for, and not at all when forgotten", () => {
    const { turns, done, piece, frame } = world();
    const [a, b] = [piece("a"), piece("b")];
    turns.ask(a);
    turns.ask(b);
    turns.ask(a);
    turns.forget(b);
    frame();
    frame();
    expect(done).toEqual(["a"]);
    turns.ask(b);
    frame();
    expect(done).toEqual(["a", "b"]);
  });
});
