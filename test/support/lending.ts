import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type * as Millrace from '../../src/index.js';
import type * as Load from '../../src/native/load.js';
import { root } from './cli-process.js';
import { DEADLINE_MS } from './waiters.js';

/** The built library: pools and leases are the addon's. */
const load = createRequire(import.meta.url);
export const millrace = load(join(root, 'dist', 'index.js')) as typeof Millrace;
/** The addon as it calls it. */
export const addon = (load(join(root, 'dist', 'native', 'load.js')) as typeof Load).loadNative();

setFlagsFromString('--expose-gc');
const gc = runInNewContext('gc') as () => void;

/** A domain of a test's own, all of whose members are in this process. */
export class Domain {
  readonly folder = mkdtempSync('/dev/shm/lend-');
  readonly members: Millrace.Member[] = [];
  readonly #before = { ...process.env };

  constructor(env: NodeJS.ProcessEnv = {}) {
    Object.assign(process.env, { MILLRACE_SHM_DIR: this.folder, MILLRACE_FABRIC: 'lend', ...env });
  }

  async member(name: string, options: Millrace.JoinOptions = {}): Promise<Millrace.Member> {
    const member = await millrace.join('lend', { name, ...options });
    this.members.push(member);
    return member;
  }

  /** Files of pools that are left. */
  get files(): string[] {
    return readdirSync(this.folder, { recursive: true })
      .map(String)
      .filter((name) => /\/b-\d+\.\d+$/.test(name));
  }

  /** All leave; nothing may be left. @returns the files that are */
  async end(): Promise<string[]> {
    for (const member of this.members) await member.leave();
    // A spare block that was in the making, on another thread, goes when it is made.
    await until(() => this.files.length === 0).catch(() => {});
    const left = this.files;
    rmSync(this.folder, { recursive: true, force: true });
    for (const key of ['MILLRACE_SHM_DIR', 'MILLRACE_FABRIC', 'MILLRACE_DEV', 'MILLRACE_EXTERNAL_BUFFERS']) {
      if (this.#before[key] === undefined) delete process.env[key];
      else process.env[key] = this.#before[key];
    }
    return left;
  }
}

const turn = () => new Promise((done) => setImmediate(done));

/** Takes turns of the event loop until the condition holds. */
export async function until(condition: () => boolean): Promise<void> {
  const deadline = Date.now() + DEADLINE_MS;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`did not happen: ${condition}`);
    await turn();
  }
}

/** Collects garbage until the condition holds. */
export const collected = (condition: () => boolean): Promise<void> =>
  until(() => {
    gc();
    return condition();
  });
