/** How often what is shown follows the feed: in the next frame after a quiet time, else at most four times a second. Each
 * pool sends its change at a moment of its own, so that with forty pools a page would otherwise be drawn in every frame. */

const GAP_MS = 250;

interface PacePorts {
  now(): number; // milliseconds
  after(ms: number, action: () => void): void;
  frame(action: () => void): void;
}

export class Pace {
  private readonly draw: () => void;
  private readonly ports: PacePorts;
  private due = false;
  private drawnAt = Number.NEGATIVE_INFINITY;

  constructor(draw: () => void, ports: PacePorts) {
    this.draw = draw;
    this.ports = ports;
  }

  /** Something has changed. */
  soon(): void {
    if (this.due) return;
    this.due = true;
    const wait = this.drawnAt + GAP_MS - this.ports.now();
    if (wait > 0) this.ports.after(wait, () => this.inFrame());
    else this.inFrame();
  }

  private inFrame(): void {
    this.ports.frame(() => {
      this.due = false;
      this.drawnAt = this.ports.now();
      this.draw();
    });
  }
}
