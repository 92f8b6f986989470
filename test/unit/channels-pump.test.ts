/** How often a member calls native code, turns and sleeps while nothing, something or other work is there: counted. */
import { expect, test } from 'vitest';
import type { Clock } from '../../src/channels/clock.js';
import { Pump, type PumpWork, type WaitMode } from '../../src/channels/pump.js';
import type { Transport } from '../../src/channels/transport.js';

/** A pump over stubs. A turn of the loop takes 3 us, a native wait as long as it is asked for, a message at once. */
class Rig {
  now = 1;
  turns = 0;
  lingers = 0;
  polls = 0;
  sleeps = 0;
  flushes = 0;
  /** When messages land, in order. */
  readonly arrivals: number[] = [];
  /** Milliseconds of other work in each turn of the event loop. */
  otherWork = 0;
  taken = false;
  members = 2;
  /** Rows to be sent. */
  rows = 0;
  asleep = false;
  #turn: (() => void) | null = null;
  readonly #microtasks: (() => void)[] = [];
  #arrived = false;
  readonly pump: Pump;

  constructor(mode: WaitMode, cpus = 2) {
    const rig = this;
    const transport = {
      frames: { empty: true },
      get pending() {
        return rig.rows > 0;
      },
      poll: () => {
        rig.polls++;
        return rig.#take();
      },
      linger: (micros: number) => {
        rig.lingers++;
        const next = rig.arrivals[0] ?? Number.POSITIVE_INFINITY;
        const until = rig.now + micros / 1000;
        rig.now = Math.max(rig.now, Math.min(next, until));
        if (rig.taken) rig.now += 3;
        return rig.taken ? 2 : Number(next <= until);
      },
      arm: () => !((rig.arrivals[0] ?? Number.POSITIVE_INFINITY) <= rig.now),
      sleep: (on: boolean) => {
        if (on) rig.sleeps++;
        rig.asleep = on;
      },
      ref() {},
      watch() {},
    } as unknown as Transport;
    const clock = {
      now: () => this.now,
      microtask: (run: () => void) => this.#microtasks.push(run),
      setImmediate: (run: () => void) => {
        this.#turn = run;
        return {};
      },
      clearImmediate: () => {
        this.#turn = null;
      },
    } as unknown as Clock;
    const work: PumpWork = {
      deliver: () => {
        const had = this.#arrived;
        this.#arrived = false;
        return had;
      },
      endOfTurn: () => {
        this.flushes++;
        this.rows = 0;
      },
      pending: () => false,
      members: () => this.members,
      failed: (error) => {
        throw error;
      },
    };
    this.pump = new Pump(transport, clock, mode, work, cpus);
  }

  #take(): boolean {
    if (!((this.arrivals[0] ?? Number.POSITIVE_INFINITY) <= this.now)) return false;
    this.arrivals.shift();
    this.#arrived = true;
    return true;
  }

  /** Runs turns until it sleeps or so many are over. */
  run(most = 10_000): this {
    while (this.#turn !== null && most-- > 0) {
      const run = this.#turn;
      this.#turn = null;
      this.now += 0.003 + this.otherWork;
      this.turns++;
      run();
      for (const each of this.#microtasks.splice(0)) each();
    }
    return this;
  }

  /** Something is published from the event loop, not from within a turn. */
  publish(): void {
    this.rows = 1;
    this.pump.schedule();
    for (const each of this.#microtasks.splice(0)) each();
  }

  /** A message lands so long after now; who sleeps is woken 30 us later. */
  message(after: number): this {
    this.arrivals.push(this.now + after);
    if (!this.asleep) return this;
    this.now += after + 0.03;
    this.pump.wake();
    return this;
  }

  count(run: () => void) {
    const before = { ...this };
    run();
    const { turns, lingers, polls, sleeps } = this;
    return {
      turns: turns - before.turns,
      lingers: lingers - before.lingers,
      polls: polls - before.polls,
      sleeps: sleeps - before.sleeps,
    };
  }
}

test('nothing has come yet: one turn, and it sleeps', () => {
  const rig = new Rig('adaptive');
  rig.pump.start();
  expect(rig.count(() => rig.run())).toEqual({ turns: 1, lingers: 0, polls: 1, sleeps: 1 });
});

test('messages that follow closely: a turn and a wait for each, no sleep', () => {
  const rig = new Rig('adaptive');
  rig.pump.start();
  rig.run().message(1).run();
  const counts = rig.count(() => {
    rig.message(0.001).run(1);
    for (let i = 0; i < 99; i++) rig.message(0.006).run(1);
  });
  expect(counts.sleeps).toBeLessThanOrEqual(1);
  expect(counts.turns).toBeLessThanOrEqual(110);
  expect(counts.polls).toBeLessThanOrEqual(110);
  expect(counts.lingers).toBeGreaterThan(90);
});

test('after the last one it waits for 100 us in few turns, then sleeps', () => {
  const rig = new Rig('adaptive');
  rig.pump.start();
  rig.run().message(0.05);
  const from = rig.now;
  const counts = rig.count(() => rig.run());
  expect(counts.sleeps).toBe(1);
  expect(counts.lingers).toBeGreaterThan(2);
  expect(counts.turns).toBeLessThan(12);
  expect(rig.now - from).toBeLessThan(0.15);
});

test('one message every 10 ms: after a while one turn to take it and one to sleep, no polling', () => {
  const rig = new Rig('adaptive');
  rig.pump.start();
  for (let i = 0; i < 20; i++) rig.run().message(10);
  expect(rig.count(() => rig.run())).toEqual({ turns: 2, lingers: 0, polls: 2, sleeps: 1 });
});

test('never waits natively where the event loop has other work, or where something is published from it', () => {
  const rig = new Rig('adaptive');
  rig.pump.start();
  rig.otherWork = 0.02;
  expect(
    rig
      .run()
      .message(0.01)
      .count(() => rig.run()).lingers,
  ).toBe(0);
  rig.otherWork = 0;
  rig.message(0.01);
  const counts = rig.count(() => {
    for (let i = 0; i < 5; i++) {
      rig.publish();
      rig.run(1);
    }
  });
  expect(counts).toMatchObject({ turns: 5, lingers: 0 });
});

test('sleeps when other work keeps taking the CPU while it polls, and stays away from polling for a time', () => {
  const rig = new Rig('adaptive');
  rig.pump.start();
  rig.run();
  rig.message(0.05).run(1);
  // A peer on the same CPU takes it, too, until the scheduler parts the two: so it goes on waiting natively for some time.
  let lost = 0;
  for (let i = 0; i < 40; i++) {
    rig.taken = true;
    lost += rig.message(0.05).count(() => rig.run(1)).lingers;
    rig.taken = false;
    rig.message(0.01).run(1);
  }
  // 3 ms each, less the tenth of the time that is put up with always, until more than 64 are lost.
  expect(lost).toBe(24);
  rig.run();
  rig.message(0.05);
  expect(rig.count(() => rig.run()).lingers).toBe(0);
});

test("mode 'event' never polls on, mode 'spin' never sleeps while there are CPUs for all", () => {
  const event = new Rig('event');
  event.pump.start();
  event.run().message(0.01);
  expect(event.count(() => event.run())).toEqual({ turns: 2, lingers: 0, polls: 2, sleeps: 1 });
  const spin = new Rig('spin');
  spin.pump.start();
  expect(spin.count(() => spin.run(500))).toMatchObject({ turns: 500, sleeps: 0 });
  const crowded = new Rig('spin');
  crowded.members = 3;
  crowded.pump.start();
  expect(crowded.run().sleeps).toBe(1);
});
