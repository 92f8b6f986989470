import { join } from 'node:path';
import { expect } from 'vitest';
import { type Place, root } from './cli-process.js';
import { type Line, MemberProcess } from './member-process.js';

const program = join(root, 'test', 'integration', 'programs', 'kill-member.mjs');

/** What a member has heard of one publisher. */
export interface Heard {
  /** From here on everything was to come. */
  readonly from: number;
  readonly first: number;
  readonly last: number;
  readonly count: number;
  /** Messages that are missing. */
  readonly gaps: number;
  /** Messages that came after a gap. */
  readonly resumed: number;
  readonly disorder: number;
  readonly broken: number;
  readonly left: string | null;
}

export interface MemberOptions {
  readonly join?: object;
  readonly publish?: boolean;
  readonly burst?: number;
  readonly progress?: number;
}

/** A member in a process of its own that publishes all the time; see test/integration/programs/kill-member.mjs. */
export class Victim extends MemberProcess {
  constructor(place: Place, name: string, options: MemberOptions = {}) {
    super(place, program, name, options);
  }

  static start(place: Place, name: string, options: MemberOptions = {}): Promise<Victim> {
    return new Victim(place, name, options).up();
  }

  /** Waits for something about a peer that it says. */
  told(type: string, peer: string): Promise<void> {
    return this.until(`${type} of ${peer}`, () => this.of(type).some((line) => line.peer === peer));
  }

  /** Waits until it has heard more, as many times as it says so. */
  progress(times = 1): Promise<void> {
    const before = this.of('progress').length;
    return this.until('progress', () => this.of('progress').length >= before + times);
  }

  /** Waits for its end, which must be the one that it was to come to. */
  async ends(how: string): Promise<void> {
    const end = await this.running.finish();
    const killed = how === 'kill' || how === 'outside';
    const failed = how === 'throw' || how === 'reject';
    const code = killed ? null : failed ? 1 : 0;
    expect([how, end]).toEqual([how, { code, signal: killed ? 'SIGKILL' : null }]);
    if (failed) expect(this.running.err).toContain('Error: on purpose');
    else expect(this.running.err).toBe('');
  }

  rest(): Promise<Line> {
    return this.ask('rest', 'rests');
  }

  async heard(): Promise<Readonly<Record<string, Heard>>> {
    return (await this.ask('heard', 'heard')).heard;
  }

  resources(): Promise<Line> {
    return this.ask('resources', 'resources');
  }
}

/** A random number generator that gives the same numbers for the same seed (splitmix32). */
export class Dice {
  #state: number;

  constructor(readonly seed: number) {
    this.#state = seed >>> 0;
  }

  /** A whole number from 0 to below the bound. */
  below(bound: number): number {
    this.#state = (this.#state + 0x9e3779b9) >>> 0;
    let z = this.#state;
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
    return Math.floor((((z ^ (z >>> 16)) >>> 0) / 0x1_0000_0000) * bound);
  }

  pick<T>(from: readonly T[]): T {
    return from[this.below(from.length)]!;
  }
}

/**
 * The seeds of a test: MILLRACE_SEED if it is given, else `count` (or MILLRACE_SEEDS) new ones. A test names its seed, so
 * what failed can be run again.
 */
export function seeds(count: number): number[] {
  const { MILLRACE_SEED: one, MILLRACE_SEEDS: many } = process.env;
  if (one) return [Number(one)];
  return Array.from({ length: Number(many || count) }, () => Math.floor(Math.random() * 0x1_0000_0000));
}
