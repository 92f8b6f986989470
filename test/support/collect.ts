import type { Observable } from 'rxjs';

/** Everything that a stream emits, as an array that grows. */
export function collect<T>(stream: Observable<T>): T[] & { ended?: 'complete' | Error } {
  const all: T[] & { ended?: 'complete' | Error } = [];
  stream.subscribe({
    next: (value) => all.push(value),
    error: (error: Error) => {
      all.ended = error;
    },
    complete: () => {
      all.ended = 'complete';
    },
  });
  return all;
}

/** What became of a promise, without waiting for it. */
export function outcome<T>(promise: Promise<T>): {
  value?: T;
  error?: Error & { code?: string; ambiguous?: boolean };
  done: boolean;
} {
  const state: { value?: T; error?: Error & { code?: string }; done: boolean } = { done: false };
  promise.then(
    (value) => {
      state.value = value;
      state.done = true;
    },
    (error: Error) => {
      state.error = error;
      state.done = true;
    },
  );
  return state;
}

export const numbers = (from: number, to: number): number[] =>
  Array.from({ length: to - from + 1 }, (_, i) => from + i);
