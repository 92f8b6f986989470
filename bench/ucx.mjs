/** ucx_perftest, of Debian's ucx-utils, on both sides. */
import { freePort, runJob } from '../test/conformance/pair.mjs';

/**
 * @param transport 'posix', shared memory, or 'cma', copies by the kernel
 * @param shm a folder for its files
 * @returns what its last line has: `latency` in us (that of a message, typical), `bandwidth` in MiB/s (over the whole run)
 */
export async function runUcx(test, transport, bytes, count, shm, port) {
  const on = port ?? (await freePort());
  const words = ['-p', String(on), '-f', '-v'];
  const more = ['-t', test, '-s', String(bytes), '-n', String(count), '-w', '20', '-O', '16'];
  // The lower layer's own tests name a transport; those of the upper one take it from the environment.
  if (transport === 'cma') more.push('-x', 'cma', '-d', 'memory', '-D', 'zcopy');
  const { result, reason, text } = await runJob(
    {
      server: ['ucx_perftest', ...words],
      clients: [['ucx_perftest', '127.0.0.1', ...words, ...more]],
      limitMs: 120_000,
    },
    { env: { ...process.env, UCX_TLS: 'posix,self', UCX_WARN_UNUSED_ENV_VARS: 'n' }, shm, port: on },
  );
  if (result !== 'pass') throw new Error(reason);
  const row = text.trim().split('\n').at(-1).split(',').map(Number);
  return { latency: row[1], bandwidth: row[5] };
}
