/** The byte window of one subscriber: how much may be on its way to it that it has not taken. */
export class Window {
  /** Bytes. */
  size = 0;
  /** Bytes of DATA that were sent, and of those that the subscriber took. */
  sent = 0;
  taken = 0;

  get outstanding(): number {
    return this.sent - this.taken;
  }

  /** A message that is larger than the window goes when nothing else is on its way. */
  fits(bytes: number): boolean {
    const outstanding = this.sent - this.taken;
    return outstanding + bytes <= this.size || outstanding === 0;
  }

  /** Bytes that may be sent at once: what the window allows and `most`, and at least one record of `first` bytes. */
  budget(first: number, most: number): number {
    return Math.max(first, Math.min(this.size - this.outstanding, most));
  }

  /** The subscriber says that it took so many bytes in all. @returns whether that can be (I9) */
  took(bytes: number): boolean {
    if (!(bytes >= this.taken && bytes <= this.sent)) return false;
    this.taken = bytes;
    return true;
  }
}
