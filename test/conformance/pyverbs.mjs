/** rdma-core's own tests, as Debian ships them beside python3-pyverbs. None of them is in this tree. */
import { spawn } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { createInterface } from 'node:readline';
import { gunzipSync } from 'node:zlib';

/** Where Debian's package rdma-core puts them. */
export const SOURCE = '/usr/share/doc/rdma-core/tests';
/** The interpreter that python3-pyverbs is for. */
export const PYTHON = '/usr/bin/python3';

const runner = join(import.meta.dirname, 'pyverbs_tests.py');

/** Unpacks the tests. @returns the folder, and what removes it */
function unpack() {
  const folder = mkdtempSync(join(tmpdir(), 'millrace-pyverbs-'));
  chmodSync(folder, 0o755); // the tests may run as another user
  for (const name of readdirSync(SOURCE)) {
    if (!/\.py(\.gz)?$/.test(name)) continue;
    const bytes = readFileSync(join(SOURCE, name));
    writeFileSync(join(folder, basename(name, '.gz')), name.endsWith('.gz') ? gunzipSync(bytes) : bytes);
  }
  return { folder, remove: () => rmSync(folder, { recursive: true, force: true }) };
}

/**
 * Runs them one after the other.
 * @param {{ env: object, shm: string, user?: { uid: number, gid: number }, which: 'common' | 'all', names: string[], limitS: number,
 *   each: (row: { id: string, result: 'pass' | 'skip' | 'fail', reason: string, ms: number }) => void }} options
 * @returns {Promise<string>} what went wrong with the run itself, empty if nothing did
 */
export async function runPyverbs({ env, shm, user, which, names, limitS, each }) {
  if (!existsSync(SOURCE)) return `${SOURCE} is missing (a system that was installed without documentation?)`;
  const { folder, remove } = unpack();
  try {
    const child = spawn(
      PYTHON,
      [runner, folder, String(limitS), which, user ? `${user.uid}:${user.gid}` : '-', ...names],
      {
        env: { ...env, MILLRACE_SHM_DIR: shm, PYTHONDONTWRITEBYTECODE: '1' },
        stdio: ['ignore', 'pipe', 'pipe'],
      },
    );
    const end = () => child.kill('SIGKILL');
    process.once('exit', end);
    let said = '';
    child.stderr.setEncoding('utf8').on('data', (text) => {
      said = (said + text).slice(-4000);
    });
    const ended = new Promise((resolve) => {
      child.once('error', (error) => resolve(error.message));
      child.once('close', (code, signal) =>
        resolve(code === 0 ? '' : `ended with ${code ?? signal}\n${said}`),
      );
    });
    for await (const line of createInterface({ input: child.stdout })) each(JSON.parse(line));
    const fault = await ended;
    process.off('exit', end);
    return fault;
  } finally {
    remove();
  }
}
