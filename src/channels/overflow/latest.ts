import type { RecordSource } from '../wire.js';
import { Fifo } from './fifo.js';

/** The queue holds one message, the newest. */
export class Latest extends Fifo {
  push(source: RecordSource, start: number, length: number): void {
    while (this.queue.count > 0) {
      const sequence = this.queue.headSequence();
      this.queue.shift();
      this.dropped(sequence);
    }
    this.queue.push(source, start, length);
  }
}
