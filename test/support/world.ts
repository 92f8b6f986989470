/**
 * Several members in one process over a fake device and a fake cluster, under a clock that only moves when told to. Nothing
 * here sleeps, and the order of everything is chosen by the test.
 */
import type { Clock, Scheduled } from '../../src/channels/clock.js';
import type { ClusterPort } from '../../src/channels/engine.js';
import { joinWith } from '../../src/channels/join.js';
import type { Member } from '../../src/channels/member.js';
import type { JoinOptions } from '../../src/channels/options.js';
import { FakeDomain } from './fake-cluster.js';
import { FakeFabric } from './fake-native.js';

interface Task {
  readonly owner: Life;
  readonly run: () => void;
  cancelled: boolean;
}

interface Timer extends Task {
  readonly at: number;
  readonly order: number;
}

/** Whether a member's process runs, is stopped (SIGSTOP) or dead (SIGKILL). */
export interface Life {
  state: 'running' | 'stopped' | 'dead';
}

/** A random number generator that gives the same numbers for the same seed. */
export function splitmix(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
    return ((z ^ (z >>> 16)) >>> 0) / 0x1_0000_0000;
  };
}

export interface Joined<C = undefined> {
  readonly member: Member<C>;
  readonly life: Life;
}

export class World {
  now = 0;
  readonly fabric: FakeFabric;
  readonly #tasks: Task[] = [];
  readonly #timers: Timer[] = [];
  readonly #domains = new Map<string, FakeDomain>();
  readonly #joined: Joined<never>[] = [];
  #order = 0;
  #random: (() => number) | null;
  /** Of the members' back-offs. */
  readonly #dice: () => number;

  constructor(options: { seed?: number; slotsPerPeer?: number } = {}) {
    this.#random = options.seed === undefined ? null : splitmix(options.seed);
    this.#dice = splitmix((options.seed ?? 0) + 1);
    this.fabric = new FakeFabric((owner, run) => this.task(owner, run), options.slotsPerPeer ?? 8);
  }

  /** A member in a process of its own. Sleeps at once when idle, so that the world comes to rest. */
  async join<C = undefined>(domain = 'test', options: JoinOptions = {}): Promise<Member<C>> {
    return (await this.joinWithLife<C>(domain, options)).member;
  }

  async joinWithLife<C = undefined>(domain = 'test', options: JoinOptions = {}): Promise<Joined<C>> {
    const life: Life = { state: 'running' };
    const native = this.fabric.nativeFor(life);
    let found = this.#domains.get(domain);
    if (found === undefined) {
      found = new FakeDomain(this.fabric, (owner, run) => this.task(owner, run));
      this.#domains.set(domain, found);
    }
    const fake = found;
    const member = await joinWith<C>(
      () => ({
        native,
        clock: this.clockFor(life),
        dice: this.#dice,
        joinCluster: (given) => fake.join(life, given),
      }),
      domain,
      { mode: 'event', ...options },
    );
    const joined = { member, life };
    this.#joined.push(joined as unknown as Joined<never>);
    return joined;
  }

  /** SIGKILL: from now on its code does not run, and the others notice in their own time. */
  kill(member: Member<never> | Member): void {
    const { life } = this.#find(member);
    life.state = 'dead';
    this.fabric.killed(life);
    for (const domain of this.#domains.values()) domain.killed(life);
  }

  /** SIGSTOP and SIGCONT: what is due runs when it goes on. */
  stop(member: Member<never> | Member): void {
    this.#find(member).life.state = 'stopped';
  }
  continue(member: Member<never> | Member): void {
    this.#find(member).life.state = 'running';
  }

  /** What that member sends on its control connections is late, while its lanes work; until `hasten`. */
  delayControl(member: Member<never> | Member): void {
    for (const domain of this.#domains.values()) domain.delay(this.#find(member).member.incarnation);
  }
  /** So many of its delayed control messages arrive, the oldest first; without a number all, and none is delayed any more. */
  hastenControl(member: Member<never> | Member, count?: number): void {
    for (const domain of this.#domains.values()) domain.hasten(this.#find(member).member.incarnation, count);
  }

  /** The domain's members, for what the cluster does to them. */
  domain(name = 'test'): FakeDomain {
    return this.#domains.get(name)!;
  }

  /** A member's end of the cluster, to send what it would never send. */
  portOf(incarnation: number): ClusterPort {
    for (const domain of this.#domains.values()) {
      const port = domain.portOf(incarnation);
      if (port !== undefined) return port;
    }
    throw new Error(`no member ${incarnation}`);
  }

  /** A message of a peer's transport arrives at a member, over the control connection. */
  tunnelTo(member: Member<never> | Member, bytes: Uint8Array): void {
    for (const domain of this.#domains.values())
      domain.tunnelTo(this.#find(member).member.incarnation, bytes);
  }

  lifeOf(member: Member<never> | Member): Life {
    return this.#find(member).life;
  }

  /** Runs everything that is due, until nothing is. */
  async settle(): Promise<void> {
    for (let round = 0; ; round++) {
      if (round > 100_000) throw new Error('The world does not come to rest.');
      await turnOfMicrotasks();
      if (!this.runOne()) return;
      while (this.runOne());
    }
  }

  /** Moves the clock, running timers in their order and all that follows from them. */
  async advance(ms: number): Promise<void> {
    await this.settle();
    const end = this.now + ms;
    for (;;) {
      const next = this.#timers
        .filter((timer) => !timer.cancelled && timer.at <= end && timer.owner.state === 'running')
        .sort((a, b) => a.at - b.at || a.order - b.order)[0];
      if (next === undefined) break;
      this.now = Math.max(this.now, next.at);
      this.#timers.splice(this.#timers.indexOf(next), 1);
      next.run();
      await this.settle();
    }
    this.now = end;
    await this.settle();
  }

  /** Runs one task that is due: the oldest, or with a seed any that keeps each member's own order. @returns false if none is */
  runOne(): boolean {
    const due = this.#tasks.filter((task) => !task.cancelled && task.owner.state === 'running');
    if (due.length === 0) {
      this.#tasks.splice(
        0,
        this.#tasks.length,
        ...this.#tasks.filter((task) => !task.cancelled && task.owner.state === 'stopped'),
      );
      return false;
    }
    let task = due[0]!;
    if (this.#random !== null) {
      const owners = [...new Set(due.map((one) => one.owner))];
      const owner = owners[Math.floor(this.#random() * owners.length)]!;
      task = due.find((one) => one.owner === owner)!;
    }
    this.#tasks.splice(this.#tasks.indexOf(task), 1);
    task.run();
    return true;
  }

  /** Whether anything is due or any timer is set. */
  get pendingTimers(): number {
    return this.#timers.filter((timer) => !timer.cancelled && timer.owner.state !== 'dead').length;
  }

  task(owner: Life, run: () => void): Scheduled & { cancel(): void } {
    const task: Task = { owner, run, cancelled: false };
    this.#tasks.push(task);
    const scheduled = {
      cancel: () => {
        task.cancelled = true;
      },
      unref: () => scheduled,
      ref: () => scheduled,
    };
    return scheduled;
  }

  clockFor(life: Life): Clock {
    return {
      epoch: () => 1_700_000_000_000 + this.now,
      now: () => this.now,
      setTimeout: (run, ms) => {
        const timer: Timer = { owner: life, run, cancelled: false, at: this.now + ms, order: this.#order++ };
        this.#timers.push(timer);
        const scheduled = {
          cancel: () => {
            timer.cancelled = true;
            const at = this.#timers.indexOf(timer);
            if (at >= 0) this.#timers.splice(at, 1);
          },
          unref: () => scheduled,
          ref: () => scheduled,
        };
        return scheduled;
      },
      clearTimeout: (timer) => (timer as unknown as { cancel(): void }).cancel(),
      setImmediate: (run) => this.task(life, run),
      clearImmediate: (immediate) => (immediate as unknown as { cancel(): void }).cancel(),
      microtask: (run) =>
        queueMicrotask(() => {
          if (life.state !== 'dead') run();
        }),
    };
  }

  #find(member: unknown): Joined<never> {
    const found = this.#joined.find((one) => (one.member as unknown) === member);
    if (found === undefined) throw new Error('not a member of this world');
    return found;
  }
}

/** Lets promise callbacks run: an immediate comes after all microtasks. */
function turnOfMicrotasks(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
