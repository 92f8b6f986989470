/**
 * Holds a presence lock until it is killed.
 *   addon-hold.mjs PATH [exec|fork LIBRARY]
 * exec: also starts a child that outlives it; fork: loads a library that forks without exec. Prints one JSON line.
 */
import { spawn } from 'node:child_process';
import { native } from '../../support/addon.mjs';

const [path, kind, library] = process.argv.slice(2);
native.lockPresence(path);
let child = 0;
if (kind === 'exec') {
  child =
    spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)'], { stdio: 'ignore', detached: true }).pid ??
    0;
}
if (kind === 'fork') {
  try {
    process.dlopen({ exports: {} }, library);
  } catch {
    // It is no addon: its constructor has forked, and that is all that is wanted.
  }
  child = Number(process.env.FORKED_CHILD);
}
process.stdout.write(`${JSON.stringify({ pid: process.pid, child })}\n`);
setInterval(() => {}, 1000);
