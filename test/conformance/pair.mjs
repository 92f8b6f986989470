/**
 * Runs programs against each other: each run has a fabric of its own, a free TCP port and a deadline. Nothing waits for a
 * time to pass: the server is ready when its port listens, the run is over when all programs have ended.
 */
import { spawn } from 'node:child_process';
import { chownSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';

const running = new Set();

/** Ends whatever still runs; for the end of this process. */
export function endAll() {
  for (const child of running) kill(child);
}

function kill(child) {
  try {
    process.kill(-child.pid, 'SIGKILL');
  } catch {
    // It has ended.
  }
}

/** A TCP port of the loopback interface that nobody listens on. */
export function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    // perftest and the ping-pongs listen on all addresses.
    server.listen(0, '0.0.0.0', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** Whether somebody listens on the port, asked of the kernel: a connection would be the program's first client. */
function listens(port) {
  const wanted = `:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  return ['/proc/net/tcp', '/proc/net/tcp6'].some((file) =>
    readFileSync(file, 'utf8')
      .split('\n')
      .some((line) => {
        const [, local, , state] = line.trim().split(/\s+/);
        return state === '0A' && local?.endsWith(wanted);
      }),
  );
}

/** Starts a program in a process group of its own. `ended` resolves with its code (128 and more: a signal) and text. */
function start([command, ...args], env, user) {
  const child = spawn(command, args, { env, stdio: ['ignore', 'pipe', 'pipe'], detached: true, ...user });
  running.add(child);
  const program = { child, line: [command, ...args].join(' '), text: '', code: undefined };
  const take = (chunk) => {
    program.text += chunk;
  };
  child.stdout.setEncoding('utf8').on('data', take);
  child.stderr.setEncoding('utf8').on('data', take);
  program.ended = new Promise((resolve) => {
    child.once('error', (error) => {
      take(`${command}: ${error.message}\n`);
      running.delete(child);
      program.code = 127;
      resolve();
    });
    child.once('close', (code, signal) => {
      running.delete(child);
      program.code = code ?? `killed by ${signal}`;
      resolve();
    });
  });
  return program;
}

/** Resolves when the server is ready; also when it has ended before, or `over` says that it is too late. */
async function ready(program, isReady, over) {
  while (program.code === undefined && !over() && !isReady(program)) {
    await Promise.race([program.ended, new Promise((resolve) => setTimeout(resolve, 5))]);
  }
}

/**
 * Runs a server and its clients, or one program alone.
 * @param {{ server?: string[], clients?: string[][], program?: string[], expect?: (text: string) => string | undefined,
 *   env?: object, ready?: (server: { text: string }) => boolean, limitMs: number }} job `expect` sees what the last client
 *   (or the program) printed and says what is wrong; `ready` is for a server that does not listen on `place.port`
 * @param {{ env: object, shm: string, port: number, user?: { uid: number, gid: number } }} place who runs them: this process's
 *   user, unless it is root and says so
 * @returns {Promise<{ result: 'pass' | 'fail', reason: string, ms: number, text: string }>}
 */
export async function runJob(job, place) {
  const began = Date.now();
  const shm = mkdtempSync(join(place.shm, 'cf-'));
  if (place.user) chownSync(shm, place.user.uid, place.user.gid);
  const env = { ...place.env, ...job.env, MILLRACE_SHM_DIR: shm };
  const programs = [];
  let late = false;
  const timer = setTimeout(() => {
    late = true;
    for (const program of programs) kill(program.child);
  }, job.limitMs);
  if (job.server) {
    const server = start(job.server, env, place.user);
    programs.push(server);
    await ready(server, job.ready ?? (() => listens(place.port)), () => late);
    if (server.code === undefined && !late) {
      // A server with several clients takes one after the other, and listens until it has them all.
      for (const words of job.clients) programs.push(start(words, env, place.user));
    }
  } else {
    programs.push(start(job.program, env, place.user));
  }
  // When one has failed the other may wait for it until the deadline; there is nothing more to learn from it.
  await Promise.race([
    Promise.all(programs.map((program) => program.ended)),
    ...programs.map((program) =>
      program.ended.then(() => (program.code === 0 ? new Promise(() => {}) : undefined)),
    ),
  ]);
  for (const program of programs) if (program.code === undefined) kill(program.child);
  const undone = programs.filter((program) => program.code === undefined);
  await Promise.all(programs.map((program) => program.ended));
  clearTimeout(timer);

  const text = programs.at(-1).text;
  let reason = '';
  if (late) reason = `not over after ${job.limitMs / 1000} s`;
  else if (programs.some((program) => program.code !== 0)) {
    reason = programs
      .filter((program) => program.code !== 0 && !undone.includes(program))
      .map((program) => `${program.line}: ended with ${program.code}`)
      .join('; ');
  } else {
    reason = job.expect?.(text) ?? '';
    const left = readdirSync(shm);
    if (reason === '' && left.length > 0) reason = `left behind in shared memory: ${left.join(', ')}`;
  }
  rmSync(shm, { recursive: true, force: true });
  if (reason !== '') {
    for (const program of programs)
      reason += `\n$ ${program.line}\n${program.text.trimEnd().split('\n').slice(-15).join('\n')}`;
  }
  return { result: reason === '' ? 'pass' : 'fail', reason, ms: Date.now() - began, text };
}
