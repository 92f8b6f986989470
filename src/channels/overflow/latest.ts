import type { RecordSource } from '../wire.js';
import { Fifo } from './fifo.js';

/** The queue holds one message, the newest. */
export class Latest extends Fifo {
  push(source: RecordSource, start: number, length: number): void {
    while (this.dropOldest()) {}
    this.queue.push(source, start, length);
  }

  override shed(): boolean {
    return this.dropOldest();
  }
}
