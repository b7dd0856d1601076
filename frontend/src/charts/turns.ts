/** Work that may wait a frame or two, done a few pieces per frame, so that no frame is late for it. Pure but for its clock. */

export interface Frames {
  now: () => number;
  next: (turn: () => void) => void;
}

const browser: Frames = { now: () => performance.now(), next: (turn) => requestAnimationFrame(turn) };
const BUDGET_MS = 6;

/** Pieces are done in the order in which they were first asked for; one that is asked for again before its turn is done once. */
export class Turns {
  private waiting = new Set<() => void>();
  private coming = false;
  private readonly frames: Frames;

  constructor(frames: Frames = browser) {
    this.frames = frames;
  }

  ask(piece: () => void): void {
    this.waiting.add(piece);
    if (this.coming) return;
    this.coming = true;
    this.frames.next(this.turn);
  }

  forget(piece: () => void): void {
    this.waiting.delete(piece);
  }

  private turn = (): void => {
    const end = this.frames.now() + BUDGET_MS;
    for (const piece of this.waiting) {
      this.waiting.delete(piece);
      piece();
      if (this.frames.now() >= end) break;
    }
    this.coming = this.waiting.size > 0;
    if (this.coming) this.frames.next(this.turn);
  };
}
