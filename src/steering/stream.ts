import { Observable, Subject } from 'rxjs';

export type { Observable };

/** What `read` returns, now and every so many ms, to each subscriber. The timer does not hold the event loop. */
export function sample<T>(read: () => T, ms: number, end$: Observable<void>): Observable<T> {
  return new Observable((subscriber) => {
    subscriber.next(read());
    const timer = setInterval(() => subscriber.next(read()), ms);
    timer.unref();
    subscriber.add(end$.subscribe({ complete: () => subscriber.complete() }));
    return () => clearInterval(timer);
  });
}

/** A stream and who feeds it. */
export class Source<T> {
  private readonly subject = new Subject<T>();
  readonly stream$: Observable<T> = this.subject.asObservable();
  next(value: T): void {
    this.subject.next(value);
  }
  complete(): void {
    this.subject.complete();
  }
}
