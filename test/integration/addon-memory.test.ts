import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { ownFabric } from '../support/addon.mjs';

const fabric = ownFabric();
afterAll(() => fabric.remove());

function run(env: NodeJS.ProcessEnv, ...args: string[]) {
  const program = join('test', 'integration', 'programs', 'addon-memory.mjs');
  // A young generation of one size: the pages that it happens to have touched are more than what is looked for.
  const flags = ['--expose-gc', '--max-semi-space-size=1'];
  const result = spawnSync(process.execPath, [...flags, program, fabric.folder, ...args], {
    encoding: 'utf8',
    env: { ...process.env, ...env },
  });
  expect({ status: result.status, signal: result.signal, stderr: result.stderr }).toEqual({
    status: 0,
    signal: null,
    stderr: '',
  });
  return JSON.parse(result.stdout) as Record<string, unknown>;
}

test.each([
  ['external buffers', {}],
  ['copies', { MILLRACE_EXTERNAL_BUFFERS: '0' }],
])('tables and arena may be collected at any time: %s', (_title, env) => {
  expect(run(env, 'collect')).toEqual({ received: 200, disorder: 0, lengths: [0, 0] });
});

test('10,000 members opened and closed leave no descriptor and no memory', () => {
  const grown = run({}, 'cycle', '10000') as { files: number; rss: number; external: number };
  expect(grown.files).toBe(0);
  expect(grown.external).toBeLessThan(1 << 20);
  // A leak of one page each would be 31 MiB. V8's own heap moves by some 4.
  expect(grown.rss).toBeLessThan(12 << 20);
  expect(fabric.leftovers()).toEqual([]);
});
