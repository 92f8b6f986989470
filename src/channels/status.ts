import { type Observable, Subject } from 'rxjs';
import type { StatusEvent } from './types.js';

/** `status$` of a member or a channel. Costs nothing while nobody listens; subscribers' errors stay theirs. */
export class Status {
  readonly #subject = new Subject<StatusEvent>();
  readonly events$: Observable<StatusEvent> = this.#subject.asObservable();
  readonly #parent: Status | null;

  constructor(parent: Status | null = null) {
    this.#parent = parent;
  }

  get observed(): boolean {
    return this.#subject.observed || this.#parent?.observed === true;
  }

  /** Tells the listeners here, then those of the member. */
  emit(event: StatusEvent): void {
    if (this.#subject.observed) this.#subject.next(event);
    this.#parent?.emit(event);
  }

  /** Tells only the listeners here: for an event that is told in several places and to the member once. */
  emitHere(event: StatusEvent): void {
    if (this.#subject.observed) this.#subject.next(event);
  }

  complete(): void {
    this.#subject.complete();
  }
}
