import type { NativeLending } from '../../src/native/lending-calls.js';
import { NoPorts } from './no-ports.js';

/** Every payload over a slot is too large for it. */
const lend = (): never => {
  throw Object.assign(new Error('lend'), { code: 'E2BIG', what: 'lend', detail: 'the fake has no pool' });
};

const absent = (call: string) => (): never => {
  throw Object.assign(new Error(`${call}: the fake has no shared memory`), {
    code: 'ENOTSUP',
    what: call,
    detail: '',
  });
};

/** The lending half of the addon for fakes without shared memory: nothing can be lent, and nothing is held. */
export const noLending: NativeLending = {
  lend,
  lendFree: () => -1,
  loanBuffer: absent('loanBuffer'),
  endLoan: absent('endLoan'),
  retireBlock() {},
  holdRoom: () => 0,
  offerHold: absent('offerHold'),
  landedHold: () => false,
  land: absent('land'),
  collectHolds: () => 0,
  receiverGone() {},
  takeHold: () => 0,
  revokeHold() {},
  holdBuffer: absent('holdBuffer'),
  endHold: () => 0,
  publisherGone() {},
  vacate: () => 0,
  closeLeases() {},
  onCollected() {},
  onLoanCollected() {},
  detachBuffer() {},
  sweepPool: () => 0,
};

/** The same as a class, for fakes that are one. */
export const NoLending = class extends NoPorts {} as new () => NativeLending & NoPorts;
Object.assign(NoLending.prototype, noLending);
