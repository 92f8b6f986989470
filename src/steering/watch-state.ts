/** Watching a file of rules, as a state machine without a file system: watch.ts feeds it and does what it says. */

/** How often a file that keeps changing is waited for before it is read nevertheless. */
const MOST_WAITS = 20;

export interface WatchState {
  readonly phase: 'idle' | 'waiting' | 'reading';
  /** While waiting: how often so far. */
  readonly waits: number;
  /** While reading: the file was touched meanwhile, so what is read may be half of it. */
  readonly again: boolean;
  /** What is in force. */
  readonly text: string | undefined;
  /** What the file has instead and was told of as wrong: a text, or why there is none. */
  readonly wrong: string | undefined;
}

export type WatchEvent =
  /** Something happened to the file, or may have. */
  | { readonly type: 'touched' }
  /** Nothing more happened for a while. */
  | { readonly type: 'settled' }
  | { readonly type: 'read'; readonly text: string }
  /** `why` tells one cause from another. */
  | { readonly type: 'unreadable'; readonly why: string; readonly error: unknown }
  /** The end of an `apply`. */
  | { readonly type: 'applied'; readonly text: string; readonly ok: boolean };

export type WatchEffect =
  /** Report `settled` after a quiet while; instead of an earlier wait. */
  | { readonly type: 'wait' }
  | { readonly type: 'read' }
  | { readonly type: 'apply'; readonly text: string }
  | { readonly type: 'report'; readonly error: unknown };

/** At the start `text` is in force. */
export const watching = (text: string): WatchState => ({
  phase: 'idle',
  waits: 0,
  again: false,
  text,
  wrong: undefined,
});

/** What happens next. Pure. */
export function step(state: WatchState, event: WatchEvent): readonly [WatchState, WatchEffect | undefined] {
  switch (event.type) {
    case 'touched':
      if (state.phase === 'reading') return [{ ...state, again: true }, undefined];
      if (state.waits >= MOST_WAITS) return [state, undefined];
      return [{ ...state, phase: 'waiting', waits: state.waits + 1 }, { type: 'wait' }];
    case 'settled':
      if (state.phase !== 'waiting') return [state, undefined];
      return [{ ...state, phase: 'reading', waits: 0, again: false }, { type: 'read' }];
    case 'read':
    case 'unreadable': {
      if (state.again) return [{ ...state, phase: 'waiting', waits: 1, again: false }, { type: 'wait' }];
      const idle: WatchState = { ...state, phase: 'idle' };
      if (event.type === 'unreadable') {
        if (state.wrong === event.why) return [idle, undefined];
        return [
          { ...idle, wrong: event.why },
          { type: 'report', error: event.error },
        ];
      }
      // Touched, or written as it was. After something wrong the text in force is taken again, so that all hear of it.
      const known = state.wrong ?? state.text;
      return event.text === known ? [idle, undefined] : [idle, { type: 'apply', text: event.text }];
    }
    case 'applied': {
      const { text, ok } = event;
      return [ok ? { ...state, text, wrong: undefined } : { ...state, wrong: text }, undefined];
    }
  }
}
