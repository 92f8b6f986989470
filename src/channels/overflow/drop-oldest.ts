import type { RecordSource } from '../wire.js';
import { Fifo } from './fifo.js';

/** A full queue drops its oldest messages until the new one fits. */
export class DropOldest extends Fifo {
  push(source: RecordSource, start: number, length: number): void {
    while (!this.accepts(length)) this.dropOldest();
    this.queue.push(source, start, length);
  }

  override shed(): boolean {
    return this.dropOldest();
  }
}
