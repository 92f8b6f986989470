import { RecordQueue } from './record-queue.js';
import { FLAG, type RecordSource, WORD } from './wire.js';

/** The last messages of a channel, kept by its publisher for subscribers that come later: bounded in number and bytes. */
export class ReplayStore {
  readonly #queue = new RecordQueue();

  constructor(
    private readonly messages: number,
    private readonly maxBytes: number,
  ) {}

  get bytes(): number {
    return this.#queue.bytes;
  }

  /** Keeps a copy of the record. A record that is larger than the bound is not kept, and nothing before it either. */
  keep(source: RecordSource, start: number, size: number): void {
    const queue = this.#queue;
    queue.push(source, start, size);
    while (queue.count > this.messages || queue.bytes > this.maxBytes) queue.shift();
  }

  /** Copies of the newest messages, at most so many and so many bytes, marked as a replay for one subscription. */
  copy(subscription: number, messages: number, bytes: number): RecordQueue {
    let skip = this.#queue.count - messages;
    let excess = this.#queue.bytes - bytes;
    const copies = new RecordQueue();
    this.#queue.forEach((source, start, size) => {
      if (skip-- > 0 || excess > 0) {
        excess -= size;
        return;
      }
      const buffer = new ArrayBuffer(size);
      const copy = { bytes: new Uint8Array(buffer), u32: new Uint32Array(buffer) };
      copy.bytes.set(source.bytes.subarray(start, start + size));
      copy.u32[WORD.BITS]! |= FLAG.REPLAY << 8;
      copy.u32[WORD.CORRELATION] = subscription;
      copies.push(copy, 0, size);
    });
    return copies;
  }
}
