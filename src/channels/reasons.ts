import { FAULT, LANE_STATE } from '../native/tables.js';

/** What the reasons in a PEER_FAULT row mean. */
export const FAULT_REASONS: Readonly<Record<number, string>> = {
  [FAULT.HEADER]: 'a frame whose header is not valid',
  [FAULT.RECORDS]: 'a frame whose records do not add up; its records were dropped',
  [FAULT.ORDER]: 'a frame out of order; it was dropped',
  [FAULT.ROW]: 'a row of ours that is not valid; it was dropped',
  [FAULT.TOO_LARGE]: 'a record is larger than its slots; it was dropped',
  [FAULT.REFUSED]: 'its inbox failed again and again; nothing more is sent to it',
  [FAULT.TUNNEL]: 'a tunnel message that is not valid',
};

/** The lane states of LANE rows by name. */
export const LANE_STATES: Readonly<Record<number, 'up' | 'down' | 'rearmed'>> = {
  [LANE_STATE.UP]: 'up',
  [LANE_STATE.DOWN]: 'down',
  [LANE_STATE.REARMED]: 'rearmed',
};
