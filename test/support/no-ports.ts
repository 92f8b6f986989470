import type { NativePorts } from '../../src/native/binding.js';

function none(): never {
  throw new Error('the addon in memory has no ports');
}

/** The port calls of an addon in memory. */
export const noPorts: NativePorts = {
  openPort: none,
  openQueue: none,
  closeQueue: none,
  createFlow: none,
  destroyFlow: none,
  readFlow: none,
  portCounters: none,
  pollPort: none,
  armPort: none,
};
