import { availableParallelism } from 'node:os';
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
    const deadline = this.clock.now() + TURN_MS;
    try {
      // Polling more than once a turn: a batch holds only a few frames.
      do {
        const polled = this.transport.poll();
        delivered = this.work.deliver(Math.min(deadline, this.clock.now() + SLICE_MS), !busy);
        this.work.endOfTurn();
        if (!polled && !delivered) break;
        busy = true;
      } while (!this.#closed && this.clock.now() < deadline && (delivered || this.transport.frames.empty));
      this.#inTurn = false;
      if (!this.#closed) this.#decide(busy);
    } catch (error) {
      this.#inTurn = false;
      this.work.failed(error);
    }
  }

  #decide(busy: boolean): void {
    const now = this.clock.now();
    if (busy) this.#grace.active(now);
    if (busy || !this.transport.frames.empty) return this.#nextTurn();
    if (this.mode === 'spin' && this.work.members() <= this.cpus) return this.#nextTurn();
    if (this.mode !== 'event' && this.#grace.goesOn(now)) return this.#nextTurn();
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
