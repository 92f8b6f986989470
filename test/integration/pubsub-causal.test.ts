/** docs/guarantees.md: what a member subscribed to before it sent is known to whoever receives it, between real processes. */
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Place, root } from '../support/cli-process.js';

const program = join(root, 'test', 'integration', 'programs', 'pubsub-ask.mjs');
let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(() => place.dispose());

test('a question in the turn of the subscription to its answer: 500 times two answers', async () => {
  const answering = [place.node(program, 'answer'), place.node(program, 'answer')];
  for (const one of answering) await one.until('up', () => one.lines.includes('up'));
  const asking = place.node(program, 'ask', '500', '2');
  expect(await asking.finish()).toEqual({ code: 0, signal: null });
  expect(asking.lines).toEqual(['1000']);
  for (const one of answering) {
    one.process.stdin!.end();
    expect(await one.finish()).toEqual({ code: 0, signal: null });
    expect(one.err).toBe('');
  }
  expect(place.content).toEqual([]);
});
