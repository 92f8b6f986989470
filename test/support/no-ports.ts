import type { NativePorts } from '../../src/native/port-calls.js';

function none(): never {
  throw new Error('the addon in memory has no ports');
}

/** The port calls of an addon in memory. */
export class NoPorts implements NativePorts {
  readonly openPort = none;
  readonly openQueue = none;
  readonly closeQueue = none;
  readonly createFlow = none;
  readonly destroyFlow = none;
  readonly readFlow = none;
  readonly portCounters = none;
  readonly pollPort = none;
  readonly armPort = none;
}
