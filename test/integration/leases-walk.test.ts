/**
 * Four processes that lend, lease, retain and release by chance, some of which are killed and stopped meanwhile: at the end
 * nobody holds anything, and nothing is left. MILLRACE_WALK_STEPS sets how long (steps of each process), MILLRACE_WALK_SEED
 * which way.
 */
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Place, root } from '../support/cli-process.js';
import { MemberProcess } from '../support/member-process.js';

const STEPS = Number(process.env.MILLRACE_WALK_STEPS ?? 600);
const SEED = Number(process.env.MILLRACE_WALK_SEED ?? Date.now() % 1_000_000);
const program = join(root, 'test', 'integration', 'programs', 'lending-member.mjs');
const MIB = 1 << 20;

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

let state = SEED;
/** A number below `n`; the same for the same seed. */
function random(n: number): number {
  state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
  return Math.floor((state / 0x80000000) * n);
}

const OVERFLOWS = ['wait', 'drop-oldest', 'drop-newest', 'latest'];

let made = 0;
function start(at: number, devices: readonly string[]): Promise<MemberProcess> {
  // The second pool is too small for what all want.
  const options = {
    device: devices[at % devices.length],
    overflow: OVERFLOWS[at],
    seed: SEED + ++made,
    poolBytes: (at === 1 ? 3 : 12) * MIB,
    heldBytes: (at === 1 ? 2 : 4) * MIB,
  };
  return new MemberProcess(place, program, `m${made}`, options).up();
}

// On two ports nothing is mapped between the two halves: what is large is read from one pool into the other.
const PORTS = [
  { where: 'one port', devices: ['soft'], steps: STEPS },
  { where: 'two ports', devices: ['soft0', 'soft1'], steps: Math.ceil(STEPS / 2) },
];

test.each(PORTS)(
  `seed ${SEED}, $steps steps each, $where`,
  { timeout: 60_000 + STEPS * 100 },
  async ({ devices, steps: all }) => {
    place.env.MILLRACE_SOFT_DEVICES = '2';
    const members = await Promise.all(OVERFLOWS.map((_, at) => start(at, devices)));
    const rounds = Math.max(4, Math.round(all / 150));
    const steps = Math.ceil(all / rounds);
    /** Tells one to walk a piece. @returns what is true when it has */
    const walk = (one: MemberProcess, options: object = { steps }): (() => Promise<void>) => {
      const before = one.of('walked').length;
      one.tell('walk', options);
      return () => one.until('walked', () => one.of('walked').length > before);
    };
    // In each piece something happens to somebody, and the others go on meanwhile.
    for (let round = 0; round < rounds; round++) {
      const at = random(4);
      const victim = members[at]!;
      const signal = round % 2 === 0 ? 'SIGKILL' : 'SIGSTOP';
      const before = victim.of('under way').length;
      // Without end, so that it is in the middle of it.
      const walking = members.map((one) => (one === victim ? walk(one, {}) : walk(one)));
      await victim.until('is under way', () => victim.of('under way').length > before);
      victim.running.kill(signal);
      for (const [i, done] of walking.entries()) if (i !== at) await done();
      if (signal === 'SIGKILL') {
        await victim.running.finish();
        members[at] = await start(at, devices);
        await walk(members[at]!)();
      } else {
        victim.running.kill('SIGCONT');
        victim.tell('halt');
        await walking[at]!();
      }
    }
    const settled = await Promise.allSettled(members.map((one) => one.ask('settle', 'settled')));
    const failed = settled.flatMap((one) => (one.status === 'rejected' ? [String(one.reason)] : []));
    expect(failed).toEqual([]);
    const answers = settled.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
    for (const answer of answers) {
      expect(answer).toMatchObject({
        broken: 0,
        holds: 0,
        leases: 0,
        leasedBytes: 0,
        blocksInUse: 0,
        blockBytesInUse: 0,
      });
    }
    // It was worth it. (One that came last may have heard nothing yet.)
    const walked = members.flatMap((one) => one.of('walked'));
    for (const count of ['leases', 'values', 'loans'])
      expect(walked.reduce((sum, one) => sum + one[count], 0)).toBeGreaterThan(0);
    for (const one of members) await one.leave();
    expect(place.content).toEqual([]);
  },
);
