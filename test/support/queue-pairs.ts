import { expect } from 'vitest';

/** Whether lanes are RC: MILLRACE_SOFT_XRC=0 takes XRC from the software device, and every test holds either way. */
export const OVER_RC = process.env.MILLRACE_SOFT_XRC === '0';

/** Targets of peers that are gone still give back slots (kGraves in lanes_rc.cc), and a lane of theirs may still drain. */
const GONE = 32 + 1;

/**
 * What a member's `qps` should be, for toEqual and toMatchObject. XRC: two for a lane, however many peers it leads to. RC:
 * for each peer and lane one that sends, once it is used, and one for each lane of the peer's that leads to us.
 */
export const queuePairs = (peers: number, lanes = 1): unknown =>
  OVER_RC
    ? expect.toSatisfy(
        (qps: number) => qps >= 2 * peers && qps <= 2 * peers * lanes + GONE,
        `QPs for ${peers} peers`,
      )
    : 2 * lanes;
