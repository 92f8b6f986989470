/**
 * A test of a demo's other end: Ctrl-C in the middle, and the death of the process that started the others. After
 * both nothing may be left: no process, no file in shared memory, no network interface. Exit code 0 if so.
 *   node scripts/demo-interrupt.mjs PROGRAM SIGN     SIGN is what it prints once it is in full swing
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { root, say } from './setup.mjs';

const [program, sign] = process.argv.slice(2);
const base = process.env.MILLRACE_SHM_DIR ?? (process.platform === 'linux' ? '/dev/shm' : tmpdir());

/** The live processes of a process group. */
const inGroup = (group) =>
  readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    try {
      const [state, , pgrp] = readFileSync(`/proc/${pid}/stat`, 'utf8')
        .replace(/^.*\) /s, '')
        .split(' ');
      return Number(pgrp) === group && state !== 'Z';
    } catch {
      return false;
    }
  });

/** Polls a condition until it holds; the deadline is for a broken run only. */
async function until(condition, ms = 60_000) {
  const end = Date.now() + ms;
  while (Date.now() < end) {
    if (condition()) return true;
    await sleep(20);
  }
  return condition();
}

async function interrupted(title, strike, expected) {
  const folder = mkdtempSync(join(base, 'd-'));
  // What is killed leaves its temporary files.
  const scratch = mkdtempSync(join(tmpdir(), 'd-'));
  const child = spawn(process.execPath, [program, '--seconds', '60'], {
    cwd: root,
    env: { ...process.env, MILLRACE_SHM_DIR: folder, TMPDIR: scratch },
    stdio: ['ignore', 'pipe', 'inherit'],
    detached: true,
  });
  let text = '';
  child.stdout.on('data', (chunk) => {
    text += chunk;
  });
  const ended = new Promise((resolve) => child.on('exit', (code, signal) => resolve(signal ?? code)));
  const live = await until(() => text.includes(sign) || child.exitCode !== null);
  strike(child.pid);
  const outcome = await Promise.race([ended, sleep(60_000, 'still running', { ref: false })]);
  await until(() => inGroup(child.pid).length === 0);
  const processes = inGroup(child.pid);
  await until(() => readdirSync(folder).length === 0);
  const files = readdirSync(folder, { recursive: true });
  // Of the fan-out's; the kernel takes a namespace apart in its own time.
  const links = () => readdirSync('/sys/class/net').filter((name) => name === `mrfan${child.pid}`);
  await until(() => links().length === 0);
  const left = [processes, files, links()].map(({ length }) => length);
  const ok = live && outcome === expected && left.every((count) => count === 0);
  say(
    `${ok ? 'ok    ' : 'FAILED'} ${title}: ended with ${outcome}; left are ${left[0]} processes, ${left[1]} files, ${left[2]} interfaces`,
  );
  for (const name of files) say(`         ${name}`);
  if (!ok) say(text);
  if (processes.length > 0) process.kill(-child.pid, 'SIGKILL');
  for (const one of [folder, scratch]) rmSync(one, { recursive: true, force: true });
  return ok;
}

const results = [
  // A terminal sends Ctrl-C to the whole group.
  await interrupted('Ctrl-C', (pid) => process.kill(-pid, 'SIGINT'), 130),
  await interrupted('a TERM signal', (pid) => process.kill(pid, 'SIGTERM'), 143),
  await interrupted('the death of the starter', (pid) => process.kill(pid, 'SIGKILL'), 'SIGKILL'),
];
process.exitCode = results.every(Boolean) ? 0 : 1;
