import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Worker } from 'node:worker_threads';
import { afterAll, afterEach, expect, test } from 'vitest';
import { addonPath, native } from '../support/addon.mjs';

const folder = mkdtempSync(join(tmpdir(), 'millrace-presence-'));
const strays: number[] = [];
let names = 0;
const newPath = () => join(folder, `m-${++names}.lock`);

afterEach(() => {
  for (const pid of strays.splice(0)) process.kill(pid, 'SIGKILL');
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Starts a holder; resolves when it has the lock. */
async function holder(path: string, ...more: string[]) {
  const program = join('test', 'integration', 'programs', 'addon-hold.mjs');
  const child: ChildProcess = spawn(process.execPath, [program, path, ...more], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [line] = await once(createInterface({ input: child.stdout! }), 'line');
  const { child: other } = JSON.parse(line) as { child: number };
  if (more.length > 0) expect(other).toBeGreaterThan(0); // 0 is this process's group
  return { child, other };
}

async function kill(child: ChildProcess) {
  const gone = once(child, 'exit');
  child.kill('SIGKILL');
  await gone;
}

const codeOf = (run: () => unknown) => {
  try {
    run();
    return 'none';
  } catch (error) {
    return (error as { code?: string }).code;
  }
};

test('a lock is seen while it is held, also by its own process', () => {
  const path = newPath();
  expect(native.isPresent(path)).toBe(false);
  const token = native.lockPresence(path);
  expect(native.isPresent(path)).toBe(true);
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(codeOf(() => native.lockPresence(path))).toBe('EAGAIN');
  writeFileSync(path, '{"pid":1}');
  expect(native.isPresent(path)).toBe(true);
  native.unlockPresence(token);
  native.unlockPresence(token);
  expect(native.isPresent(path)).toBe(false);
  const again = native.lockPresence(path);
  expect(again).not.toBe(token);
  native.unlockPresence(again);
});

test('what can not be locked says why', () => {
  expect(() => native.lockPresence(join(folder, 'no', 'such', 'folder'))).toThrow(
    expect.objectContaining({ code: 'ENOENT', errno: -2 }),
  );
  const link = newPath();
  symlinkSync(newPath(), link);
  expect(codeOf(() => native.lockPresence(link))).toBe('ELOOP');
  expect(native.isPresent(join(folder, 'm-1.lock', 'below-a-file'))).toBe(false);
  // @ts-expect-error a path is a string
  expect(codeOf(() => native.lockPresence(7))).toBe('ERR_INVALID_ARG_TYPE');
  expect(codeOf(() => native.lockPresence('with\0null'))).toBe('ERR_INVALID_ARG_TYPE');
});

test('SIGKILL drops it', async () => {
  const path = newPath();
  const { child } = await holder(path);
  expect(native.isPresent(path)).toBe(true);
  expect(codeOf(() => native.lockPresence(path))).toBe('EAGAIN');
  await kill(child);
  expect(native.isPresent(path)).toBe(false);
  native.unlockPresence(native.lockPresence(path));
});

test('SIGSTOP does not', async () => {
  const path = newPath();
  const { child } = await holder(path);
  child.kill('SIGSTOP');
  expect(native.isPresent(path)).toBe(true);
  child.kill('SIGCONT');
  await kill(child);
  expect(native.isPresent(path)).toBe(false);
});

test('a program that the holder started does not keep it alive', async () => {
  const path = newPath();
  const { child, other } = await holder(path, 'exec');
  strays.push(other);
  await kill(child);
  expect(native.isPresent(path)).toBe(false);
});

test('a child that was forked without exec does not keep it alive', async () => {
  const source = join(folder, 'forker.c');
  const library = join(folder, 'forker.so');
  writeFileSync(
    source,
    `#include <stdio.h>
     #include <stdlib.h>
     #include <unistd.h>
     __attribute__((constructor)) static void start(void) {
       pid_t child = fork();
       if (child == 0) for (;;) pause();
       char text[32];
       snprintf(text, sizeof text, "%d", (int)child);
       setenv("FORKED_CHILD", text, 1);
     }`,
  );
  execFileSync('cc', ['-shared', '-fPIC', '-o', library, source]);
  const path = newPath();
  const { child, other } = await holder(path, 'fork', library);
  strays.push(other);
  expect(native.isPresent(path)).toBe(true);
  await kill(child);
  expect(native.isPresent(path)).toBe(false);
});

test.each(['exits', 'is terminated'])('a worker that %s drops its lock', async (how) => {
  const path = newPath();
  const worker = new Worker(
    `const { parentPort, workerData } = require('node:worker_threads');
     require(workerData.addon).lockPresence(workerData.path);
     parentPort.once('message', () => process.exit());
     parentPort.postMessage('held');`,
    { eval: true, workerData: { addon: addonPath, path } },
  );
  await once(worker, 'message');
  expect(native.isPresent(path)).toBe(true);
  const gone = once(worker, 'exit');
  if (how === 'exits') worker.postMessage('exit');
  else await worker.terminate();
  await gone;
  expect(native.isPresent(path)).toBe(false);
});
