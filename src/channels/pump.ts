import { availableParallelism } from 'node:os';
import { LINGERED } from '../native/tables.js';
import type { Clock, Scheduled } from './clock.js';
import { Grace } from './grace.js';
import type { Transport } from './transport.js';

/**
 * How a member waits for messages.
 * - `adaptive`: poll for a short grace after the last activity, then sleep on the descriptor. About no CPU when idle.
 * - `event`: sleep at once. The least CPU, a wake-up (some 27 us) for every burst.
 * - `spin`: never sleep. One CPU, the shortest delay; works as `adaptive` where members outnumber the CPUs.
 */
export type WaitMode = 'adaptive' | 'event' | 'spin';

/** One turn delivers for at most about this long, then the event loop has its turn. */
export const TURN_MS = 1;
/**
 * Within a turn what was taken is told to publishers this often: a publisher that has filled its window would otherwise
 * wait for the whole turn, and the two sides would take turns in place of working at the same time.
 */
const SLICE_MS = 0.15;
/**
 * A turn that polls looks for so long natively: a turn of the event loop costs microseconds, a look much less than one.
 * Whatever else the loop has to do waits for so long at most.
 */
const LINGER_MICROS = 20;
/** A turn that came later than this after it was asked for: the event loop has other work, and polling must not delay it. */
const PROMPT_MS = 0.01;
/** Where a delivery took so long another look follows within the turn: more will have come. */
const AGAIN_MS = 0.02;
/** One turn delivers at most so many messages. */
export const TURN_MESSAGES = 4096;
/** What only polling moves on is looked after at least this often. */
const PENDING_MS = 5;

/** What the pump runs. */
export interface PumpWork {
  /** Delivers received frames until `deadline` (clock.now()) or the bound of messages. @returns whether it delivered anything. */
  deliver(deadline: number, fresh: boolean): boolean;
  /** Sends what the turn produced and settles what it can. */
  endOfTurn(): void;
  /** Whether something waits that only polling moves on, wake-up or not. */
  pending(): boolean;
  /** Members that share this host, this one included. */
  members(): number;
  /** Something failed that nobody can go on from. */
  failed(error: unknown): void;
}

/**
 * When things run: one flush at the end of a turn, polling turns by setImmediate, and sleep.
 *
 * Sleeping is arm, fence, look again, and only then wait (R7): `native.arm` says whether that may be.
 */
export class Pump {
  #flushQueued = false;
  /** When the pending turn was asked for, if it may wait natively for what comes; else 0. */
  #waitsSince = 0;
  #turn: Scheduled | null = null;
  #fallback: Scheduled | null = null;
  #sleeping = false;
  #inTurn = false;
  #closed = false;
  #held = false;
  readonly #grace = new Grace();
  readonly #onFlush = () => this.#flush();
  readonly #onTurn = () => this.#run();

  constructor(
    private readonly transport: Transport,
    private readonly clock: Clock,
    private readonly mode: WaitMode,
    private readonly work: PumpWork,
    private readonly cpus = availableParallelism(),
  ) {}

  /** Starts watching the descriptor and takes a first turn. */
  start(): void {
    this.transport.watch(() => this.wake());
    this.wake();
  }

  /** Sees to it that what was written is sent at the end of this turn. Cheap when called often. */
  schedule(): void {
    if (this.#flushQueued) return;
    this.#flushQueued = true;
    this.clock.microtask(this.#onFlush);
  }

  /** Sees to it that a polling turn follows. */
  wake(): void {
    this.#nextTurn();
  }

  /** Whether this member holds the event loop. */
  hold(on: boolean): void {
    if (this.#held === on || this.#closed) return;
    this.#held = on;
    this.transport.ref(on);
    for (const scheduled of [this.#turn, this.#fallback]) {
      if (scheduled !== null) this.#apply(scheduled);
    }
  }

  /** Whether it sleeps on the descriptor. */
  get sleeping(): boolean {
    return this.#sleeping;
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#turn !== null) this.clock.clearImmediate(this.#turn);
    this.#turn = null;
    this.#stopFallback();
  }

  #apply(scheduled: Scheduled): void {
    if (this.#held) scheduled.ref?.();
    else scheduled.unref?.();
  }

  #nextTurn(): void {
    if (this.#turn !== null || this.#closed || this.#inTurn) return;
    if (this.#sleeping) {
      this.#sleeping = false;
      this.transport.sleep(false);
    }
    this.#stopFallback();
    this.#turn = this.clock.setImmediate(this.#onTurn);
    if (!this.#held) this.#turn.unref?.();
  }

  #flush(): void {
    this.#flushQueued = false;
    if (this.#closed) return;
    // Whoever publishes from the event loop, not from within a turn, has something to do there.
    if (this.transport.pending) this.#waitsSince = 0;
    try {
      this.work.endOfTurn();
    } catch (error) {
      return this.work.failed(error);
    }
    // An echo waits in the queue of frames, and what is unsent needs credits that polling finds.
    if (!this.transport.frames.empty || this.work.pending()) this.#nextTurn();
  }

  #run(): void {
    this.#turn = null;
    if (this.#closed) return;
    this.#inTurn = true;
    let busy = false;
    let delivered = false;
    const waits = this.#waitsSince;
    let now = this.clock.now();
    if (waits > 0 && now - waits < PROMPT_MS) {
      const from = now;
      const lingered = this.transport.linger(LINGER_MICROS);
      now = this.clock.now();
      if (lingered === LINGERED.TAKEN) this.#grace.disturbed(now, now - from);
    }
    const deadline = now + TURN_MS;
    let since: number;
    try {
      // Polling more than once a turn: a batch holds only a few frames, and while they are delivered more come.
      do {
        since = now;
        const polled = this.transport.poll();
        delivered = this.work.deliver(Math.min(deadline, now + SLICE_MS), !busy);
        this.work.endOfTurn();
        if (!polled && !delivered) break;
        if (!busy) this.#grace.came(now);
        busy = true;
        now = this.clock.now();
      } while (
        !this.#closed &&
        now < deadline &&
        (this.transport.frames.empty ? now - since >= AGAIN_MS : delivered)
      );
      this.#inTurn = false;
      if (!this.#closed) this.#decide(busy, now);
    } catch (error) {
      this.#inTurn = false;
      this.work.failed(error);
    }
  }

  #decide(busy: boolean, now: number): void {
    if (busy) this.#grace.done(now);
    const stays =
      (this.mode === 'adaptive' && this.#grace.goesOn(now)) ||
      (this.mode === 'spin' && (this.#grace.goesOn(now) || this.work.members() <= this.cpus));
    this.#waitsSince = 0;
    if (!this.transport.frames.empty) return this.#nextTurn();
    if (stays) {
      // After a busy turn, too: what the subscribers have set going runs before the next one.
      this.#waitsSince = now;
      return this.#nextTurn();
    }
    if (busy) return this.#nextTurn();
    if (!this.transport.arm()) return this.#nextTurn();
    this.#sleeping = true;
    this.transport.sleep(true);
    if (this.work.pending()) {
      this.#fallback = this.clock.setTimeout(() => {
        this.#fallback = null;
        this.#nextTurn();
      }, PENDING_MS);
      this.#apply(this.#fallback);
    }
  }

  #stopFallback(): void {
    if (this.#fallback === null) return;
    this.clock.clearTimeout(this.#fallback);
    this.#fallback = null;
  }
}
