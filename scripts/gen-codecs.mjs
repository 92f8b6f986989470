/**
 * Writes the tables of docs/codecs.md: runs the test that sends each value through each codec, and lets it write down
 * what came back. `npm test` asserts that the page is current.
 */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const run = spawnSync(
  process.execPath,
  ['node_modules/vitest/vitest.mjs', 'run', '--project', 'unit', 'test/unit/codec-survives.test.ts'],
  { cwd: root, stdio: 'inherit', env: { ...process.env, MILLRACE_WRITE_DOCS: '1' } },
);
process.exitCode = run.status ?? 1;
