/**
 * `npm run check`: the inner loop, within two minutes on two cores once the C++ tests are built. Lint, directions,
 * types, the plain C++ tests (both incremental) and the unit tests. It installs nothing; `npm test` does.
 */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { commandLine, modulesAreCurrent, root, say } from './setup.mjs';

commandLine(
  'Usage: npm run check\nLint, dependency directions, types, C++ tests and unit tests. `npm test` is all of it.',
);
if (!modulesAreCurrent()) {
  say(
    'node_modules is missing or is not what package-lock.json says: run npm ci --ignore-scripts (or npm test).',
  );
  process.exit(1);
}
const args = [
  join(root, 'scripts', 'test.mjs'),
  '--no-build',
  'lint',
  'directions',
  'types',
  'native',
  'unit',
];
const result = spawnSync(process.execPath, args, {
  stdio: 'inherit',
  env: { ...process.env, MILLRACE_NO_APT: '1' },
});
process.exit(result.status ?? 1);
