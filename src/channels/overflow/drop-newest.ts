import type { RecordSource } from '../wire.js';
import { Fifo } from './fifo.js';

/** A full queue drops the new message. */
export class DropNewest extends Fifo {
  push(source: RecordSource, start: number, length: number, sequence: number): void {
    if (this.accepts(length)) this.queue.push(source, start, length);
    else this.dropped(sequence);
  }

  override forgo(): boolean {
    if (this.queue.count === 0) return false;
    this.dropped(this.queue.pop());
    return true;
  }
}
