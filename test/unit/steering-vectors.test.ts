import fc from 'fast-check';
import { expect, test } from 'vitest';
import { compile } from '../../src/steering/compile.js';
import { steer } from '../../src/steering/match.js';
import { decodePacket } from '../../src/steering/packet.js';
import { receiver } from '../../src/steering/rule.js';
import { readRules } from '../../src/steering/set.js';
import { frames, ruleInputs } from '../support/steering.js';

/** One world for all time, so that the file changes only with the code. */
const SEED = 5001;
const SETS = 60;

/**
 * Rules as they were compiled, frames, and who gets them. test/native/soft_steering_test.cc reads the same file with the
 * structures of verbs.h and asks the software device's flow table.
 */
function vectors(): string {
  const lines = ['# Made by test/unit/steering-vectors.test.ts (vitest -u writes it anew).'];
  const world = fc.tuple(ruleInputs(7), fc.array(frames, { minLength: 8, maxLength: 8 }));
  for (const [inputs, list] of fc.sample(world, { seed: SEED, numRuns: SETS })) {
    const { rules } = readRules(inputs);
    const receivers = [...new Set(rules.map(receiver))];
    const number = (rule: (typeof rules)[number]) => receivers.indexOf(receiver(rule)) + 1;
    lines.push('set');
    for (const rule of rules)
      lines.push(`rule ${number(rule)} ${Buffer.from(compile(rule)).toString('hex')}`);
    for (const frame of list) {
      const packet = decodePacket(frame)!;
      const { takers, sniffers, droppedBy } = steer(rules, packet);
      const who = [...takers, ...sniffers].map(number);
      const headers = Buffer.from(packet.headers).toString('hex');
      const hex = Buffer.from(frame).toString('hex');
      lines.push(
        `frame ${hex} ${headers} ${droppedBy === undefined ? 'passed' : 'dropped'} ${who.join(' ')}`.trimEnd(),
      );
    }
  }
  return `${lines.join('\n')}\n`;
}

test('the vectors for the native flow table are those that this code makes', async () => {
  await expect(vectors()).toMatchFileSnapshot('../native/steering_vectors.txt');
});
