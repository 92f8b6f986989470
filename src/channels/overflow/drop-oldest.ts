import type { RecordSource } from '../wire.js';
import { Fifo } from './fifo.js';

/** A full queue drops its oldest messages until the new one fits. */
export class DropOldest extends Fifo {
  push(source: RecordSource, start: number, length: number): void {
    while (!this.accepts(length)) {
      const sequence = this.queue.headSequence();
      this.queue.shift();
      this.dropped(sequence);
    }
    this.queue.push(source, start, length);
  }
}
