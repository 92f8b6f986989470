import { resolve } from 'node:path';

/** Where shared memory is unless MILLRACE_SHM_DIR says otherwise. */
const DEFAULT_BASE = '/dev/shm';

/** The base folder: MILLRACE_SHM_DIR, made absolute, or /dev/shm. */
export function baseFolder(env: NodeJS.ProcessEnv = process.env): string {
  const given = env.MILLRACE_SHM_DIR;
  return given === undefined || given === '' ? DEFAULT_BASE : resolve(given);
}
