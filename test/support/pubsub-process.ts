import { join } from 'node:path';
import { expect } from 'vitest';
import { type Place, root } from './cli-process.js';
import { type Line, MemberProcess } from './member-process.js';

const program = join(root, 'test', 'integration', 'programs', 'pubsub-member.mjs');

export interface Heard {
  readonly count: number;
  readonly first: number;
  readonly last: number;
  readonly missing: number;
  readonly disorder: number;
  readonly broken: number;
  readonly reasons: Readonly<Record<string, number>>;
  readonly left: string | null;
}

/** A member in a process of its own, told what to do. */
export class PubSub extends MemberProcess {
  constructor(place: Place, name: string, options: object = {}) {
    super(place, program, name, options);
  }

  /** A member that has joined. */
  static start(place: Place, name: string, options: object = {}): Promise<PubSub> {
    return new PubSub(place, name, options).up();
  }

  status(type: string): Line[] {
    return this.of('status').filter((line) => line.event.type === type);
  }

  async heard(): Promise<Readonly<Record<string, Heard>>> {
    return (await this.ask('heard', 'heard')).heard;
  }

  /** Waits until it has heard so many more of a channel and publisher (`x pub`). */
  async hears(what: string, more = 100): Promise<void> {
    const count = async () => (await this.heard())[what]?.count ?? 0;
    const from = await count();
    while ((await count()) < from + more);
  }

  publish(rest: object): Promise<Line> {
    return this.ask('publish', 'published', rest);
  }

  /** Ends a publish() that has no count. @returns how many it was, of all channels the only publish() under way */
  async stop(channel: string): Promise<number> {
    return (await this.ask('stop', 'published', { channel })).published;
  }

  /** Ends before a test does, so that it says what is undelivered. */
  drain(timeout = 40_000): Promise<Line> {
    return this.ask('drain', 'drained', { timeout });
  }
}

/** They leave one after the other, end in order and say nothing on standard error, and nothing is left of them in the place. */
export async function leaveAll(place: Place, ...members: readonly PubSub[]): Promise<void> {
  for (const one of members) await one.leave();
  for (const one of members)
    expect([one.name, one.running.err, one.running.end]).toEqual([one.name, '', { code: 0, signal: null }]);
  expect(place.content).toEqual([]);
}

/** What a subscriber heard that missed nothing. */
export function whole(count: number, first = 1): object {
  return { count, first, last: first + count - 1, missing: 0, disorder: 0, broken: 0, reasons: {} };
}
