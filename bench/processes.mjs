/** The processes of a measurement: each has a folder of its own, and nothing of them is left after it. */
import { fork } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** What ends with this process. */
const children = new Set();
const folders = new Set();
process.on('exit', () => {
  for (const child of children) child.kill('SIGKILL');
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
});
for (const [signal, number] of [
  ['SIGINT', 2],
  ['SIGTERM', 15],
])
  process.on(signal, () => process.exit(128 + number));

/** Ends with this process, if not before. @returns the child */
export function owned(child) {
  children.add(child);
  child.once('exit', () => children.delete(child));
  return child;
}

/** A folder, in shared memory where there is some, that is gone with this process, if not before. */
export function newFolder() {
  const folder = mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), 'millrace-bench-'));
  folders.add(folder);
  return folder;
}

export function removeFolder(folder) {
  rmSync(folder, { recursive: true, force: true });
  folders.delete(folder);
}

/**
 * Starts a program of this folder, told what to do by its argument (JSON). It answers with messages {kind: value}.
 * `first(kind)` resolves with its first one of that kind, or rejects when it ends; `ended` when it has ended. `failed` is called
 * with why when it ends in another way than by itself.
 */
function start(program, spec, failed, { env = {}, execPath = process.execPath, execArgv = [] } = {}) {
  const child = fork(join(import.meta.dirname, program), [JSON.stringify(spec)], {
    execPath,
    execArgv,
    env: { ...process.env, MILLRACE_SHM_DIR: spec.folder, ...env },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  });
  owned(child);
  let errors = '';
  child.stderr.on('data', (text) => {
    errors = (errors + text).slice(-4000);
  });
  const waiting = new Map();
  const ended = new Promise((resolve) => {
    child.on('exit', (code, signal) => {
      const error = new Error(`${spec.peer} ${spec.role} ended (${signal ?? code}): ${errors.trim()}`);
      for (const { reject } of waiting.values()) reject(error);
      if (code !== 0) failed(error);
      resolve();
    });
  });
  child.on('message', (message) => {
    if (message.failed !== undefined) errors += message.failed;
    for (const kind of Object.keys(message)) waiting.get(kind)?.resolve(message[kind]);
  });
  const first = (kind) => {
    const promise = new Promise((resolve, reject) => waiting.set(kind, { resolve, reject }));
    promise.catch(() => {});
    return promise;
  };
  return { child, first, ended };
}

let serial = 0;

/**
 * Calls `body(start, spec)` and gives back what it resolves with. `start(program, spec, options)` starts a child whose spec has
 * besides a `folder` and a `domain` of this measurement; all children are gone afterwards.
 */
export async function scene(what, deadlineMs, body) {
  const shared = { folder: newFolder(), domain: `bench-${process.pid}-${++serial}` };
  const started = [];
  let timer;
  let failed;
  const late = new Promise((_, reject) => {
    failed = reject;
    timer = setTimeout(
      () => reject(new Error(`${what}: no result within ${deadlineMs / 1000} s`)),
      deadlineMs,
    );
  });
  try {
    const run = (program, spec, options) => {
      const child = start(program, { ...spec, ...shared }, failed, options);
      started.push(child);
      return child;
    };
    return await Promise.race([body(run), late]);
  } finally {
    clearTimeout(timer);
    for (const { child } of started) if (child.exitCode === null) child.kill('SIGKILL');
    await Promise.all(started.map(({ ended }) => ended));
    removeFolder(shared.folder);
  }
}
