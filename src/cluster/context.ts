import type { Native } from '../native/binding.js';
import type { Clock } from './clock.js';
import type { Announcer } from './events.js';
import type { Registration } from './registry.js';

/** Bounds and times; the defaults suit everything but tests. */
export interface ClusterLimits {
  /** Unacknowledged bytes of control messages a peer, beyond which it is disconnected. */
  backlog: number;
  /** How long join() waits for members that do not answer, in ms. They are connected later. */
  joinWait: number;
  /** How long leave() waits for the others to take note, in ms. */
  leaveWait: number;
  /** The longest pause between two attempts to connect, in ms. */
  pause: number;
}

export const LIMITS: ClusterLimits = {
  backlog: 32 * 1024 * 1024,
  joinWait: 1000,
  leaveWait: 1000,
  pause: 1000,
};

/** What every part of one member's cluster works with. The handle is closed by the cluster alone. */
export interface Context {
  readonly native: Native;
  readonly handle: number;
  readonly registration: Registration;
  /** This member's name. */
  readonly name: string;
  readonly clock: Clock;
  readonly limits: ClusterLimits;
  readonly announcer: Announcer;
}
