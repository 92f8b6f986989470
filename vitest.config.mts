import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';

/**
 * Four projects, each a suite of `npm test`:
 *   unit         src/ in memory, no addon, files in parallel
 *   integration  the built addon and dist/, real processes, workers and signals
 *   page         a page of ours in a real browser
 *   package      the packed tarball, installed somewhere else
 * There are no retries anywhere: a test that fails now and then is a fault to find.
 */
const src = fileURLToPath(new URL('./src/index.ts', import.meta.url));
const common = {
  environment: 'node',
  pool: 'forks',
  retry: 0,
  alias: [{ find: /^millrace$/, replacement: src }],
} as const;

export default defineConfig({
  test: {
    reporters: ['default'],
    passWithNoTests: false,
    projects: [
      {
        test: {
          ...common,
          name: 'unit',
          include: ['test/unit/**/*.test.ts'],
          testTimeout: 20_000,
          hookTimeout: 20_000,
        },
      },
      {
        test: {
          ...common,
          name: 'integration',
          include: ['test/integration/**/*.test.ts'],
          // Each file starts processes of its own; on two cores two files at once only measure each other.
          fileParallelism: false,
          testTimeout: 120_000,
          hookTimeout: 120_000,
        },
      },
      {
        test: {
          ...common,
          name: 'page',
          include: ['test/page/**/*.test.ts'],
          testTimeout: 120_000,
          hookTimeout: 120_000,
        },
      },
      {
        test: {
          ...common,
          name: 'package',
          include: ['test/package/**/*.test.ts'],
          fileParallelism: false,
          testTimeout: 240_000,
          hookTimeout: 240_000,
        },
      },
    ],
  },
});
