/** A line that is longer than the limit: only its length is known. */
export interface LongLine {
  readonly bytes: number;
}

/**
 * Cuts bytes into lines. Ends are LF or CRLF; a last line without an end counts. Holds at most `limit` bytes of an unfinished
 * line, however long it is.
 */
export class LineSplitter {
  private pieces: Uint8Array[] = [];
  private length = 0;

  /** @param limit the longest line that is given, in bytes */
  constructor(private readonly limit: number) {}

  /** The lines that these bytes complete, in order. They share memory with `chunk`. */
  *push(chunk: Uint8Array): Generator<Uint8Array | LongLine> {
    let start = 0;
    for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, start)) {
      this.add(chunk.subarray(start, end));
      start = end + 1;
      yield this.take();
    }
    this.add(chunk.subarray(start));
  }

  /** What is left at the end of the input. */
  *end(): Generator<Uint8Array | LongLine> {
    if (this.length > 0) yield this.take();
  }

  private add(piece: Uint8Array): void {
    if (piece.length === 0) return;
    this.length += piece.length;
    // One byte more for a CR that does not count.
    if (this.length > this.limit + 1) this.pieces = [];
    else this.pieces.push(piece);
  }

  private take(): Uint8Array | LongLine {
    const { pieces, length } = this;
    this.pieces = [];
    this.length = 0;
    if (length > this.limit + 1) return { bytes: length };
    const line = pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces);
    const whole = line.at(-1) === 13 ? line.subarray(0, -1) : line;
    return whole.length > this.limit ? { bytes: whole.length } : whole;
  }
}
