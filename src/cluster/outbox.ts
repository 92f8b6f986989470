/**
 * Control messages of a session that the peer has not acknowledged, in order. They are kept so that a connection can break
 * and be made anew without losing one: the peer says how many it has received, and the rest is sent again.
 */
export class Outbox {
  private frames: (Buffer | undefined)[] = [];
  /** Index in `frames` of the oldest that is kept. */
  private head = 0;
  /** Messages acknowledged so far. */
  private acknowledged = 0;
  private size = 0;

  /** Bytes that are kept. */
  get bytes(): number {
    return this.size;
  }

  /** Messages put in so far. */
  get sent(): number {
    return this.acknowledged + this.frames.length - this.head;
  }

  /** Keeps a frame, which now belongs to the outbox, until it is acknowledged. */
  push(frame: Buffer): void {
    this.frames.push(frame);
    this.size += frame.length;
  }

  /**
   * The peer has received the first `count` messages.
   * @returns false when that cannot be: fewer than it said before, or more than there were
   */
  acknowledge(count: number): boolean {
    if (count < this.acknowledged || count > this.sent) return false;
    for (; this.acknowledged < count; this.acknowledged += 1) {
      this.size -= this.frames[this.head]!.length;
      this.frames[this.head] = undefined;
      this.head += 1;
    }
    // Moves the rest down once it is the smaller part: amortised constant.
    if (this.head > 32 && this.head * 2 > this.frames.length) {
      this.frames = this.frames.slice(this.head);
      this.head = 0;
    }
    return true;
  }

  /** What is not acknowledged, in order. */
  unacknowledged(): Buffer[] {
    return this.frames.slice(this.head) as Buffer[];
  }
}
