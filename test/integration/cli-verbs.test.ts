import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Io } from '../../src/cli/io.js';
import { verbs } from '../../src/cli/verbs.js';
import { Sink } from '../support/cli-command.js';
import { Place, root } from '../support/cli-process.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

/** Programs that print the devices they find, by whatever libibverbs the dynamic loader gives them. */
const onPath = (name: string) =>
  (process.env.PATH ?? '').split(':').some((folder) => fs.existsSync(join(folder, name)));

test('words, standard streams and the exit code are those of the program', async () => {
  const sh = place.millrace('verbs', '--', 'sh', '-c', 'cat; echo "$1" "$2" >&2; exit 7', 'sh', '--json', '');
  sh.write('in\n');
  sh.process.stdin!.end();
  expect(await sh.finish()).toEqual({ code: 7, signal: null });
  expect({ out: sh.out, err: sh.err }).toEqual({ out: 'in\n', err: '--json \n' });
});

test('the environment names the library and what was asked for', async () => {
  const words = ['--link', 'ethernet', '--devices', '2', '--fabric', 'lab'];
  const sh = place.millrace('verbs', ...words, 'sh', '-c', 'env | grep -E "^(LD_LIB|MILLRACE_)"');
  expect(await sh.finish()).toEqual({ code: 0, signal: null });
  expect(sh.lines).toEqual(
    expect.arrayContaining([
      'MILLRACE_SOFT_LINK=ethernet',
      'MILLRACE_SOFT_DEVICES=2',
      'MILLRACE_FABRIC=lab',
      `MILLRACE_SHM_DIR=${place.folder}`,
    ]),
  );
  const path = sh.lines.find((line) => line.startsWith('LD_LIBRARY_PATH='))!;
  const folder = path.slice('LD_LIBRARY_PATH='.length).split(':')[0]!;
  expect(fs.readdirSync(folder)).toContain('libibverbs.so.1');
});

test.each(['SIGTERM', 'SIGINT', 'SIGHUP'] as const)(
  '%s reaches the program, which decides',
  async (signal) => {
    const source = `
    process.on('${signal}', () => { console.log('got'); process.exit(9); });
    setInterval(() => {}, 1e9);
    console.log('up');`;
    const node = place.millrace('verbs', '--', process.execPath, '-e', source);
    await node.until('it runs', () => node.lines.includes('up'));
    node.kill(signal);
    expect(await node.finish()).toEqual({ code: 9, signal: null });
    expect(node.lines).toEqual(['up', 'got']);
  },
);

test('a program that a signal ends takes the command with it', async () => {
  const sh = place.millrace('verbs', '--', 'sh', '-c', 'kill -KILL $$');
  expect(await sh.finish()).toEqual({ code: null, signal: 'SIGKILL' });
});

test('a program that is not there is 127, one that is none 126', async () => {
  const absent = place.millrace('verbs', '--', 'no-such-program');
  expect(await absent.finish()).toEqual({ code: 127, signal: null });
  expect(absent.err).toContain('no-such-program');
  const none = place.millrace('verbs', '--', join(root, 'package.json'));
  expect(await none.finish()).toEqual({ code: 126, signal: null });
});

test('a program of Node.js that loads the addon works as without', async () => {
  const source = `
    const { join } = require(${JSON.stringify(join(root, 'dist', 'index.js'))});
    join('inside').then(async (member) => {
      console.log('joined');
      await member.leave();
    });`;
  const node = place.millrace('verbs', '--', process.execPath, '-e', source);
  expect(await node.finish()).toEqual({ code: 0, signal: null });
  expect(node.lines).toEqual(['joined']);
  expect(place.content).toEqual([]);
});

test.skipIf(process.getuid?.() !== 0 || !onPath('setpriv') || !onPath('ibv_devinfo'))(
  'an ordinary user needs nothing else',
  async () => {
    const user = '65534';
    // Not in the place, whose parent folders may be root's alone.
    const folder = fs.mkdtempSync(join(tmpdir(), 'millrace-user-'));
    fs.chownSync(folder, Number(user), Number(user));
    try {
      const main = join(root, 'dist', 'cli', 'main.js');
      const command = ['setpriv', `--reuid=${user}`, `--regid=${user}`, '--clear-groups'];
      command.push('env', `MILLRACE_SHM_DIR=${folder}`, process.execPath, main, 'verbs', 'ibv_devinfo');
      const devinfo = place.millrace('verbs', '--', ...command);
      expect(await devinfo.finish()).toEqual({ code: 0, signal: null });
      expect(devinfo.out).toContain('hca_id:\tsoft0');
      expect(devinfo.out).toContain('PORT_ACTIVE');
      expect(fs.readdirSync(folder)).toEqual([]);
    } finally {
      fs.rmSync(folder, { recursive: true, force: true });
    }
  },
);

describe('a signal at the start is not lost', () => {
  const io = () => new Io({ stdin: new PassThrough(), stdout: new Sink(), stderr: new Sink(), env: {} });

  test('before it: nothing is started', async () => {
    const context = { io: io(), interrupted: AbortSignal.abort(), releaseSignals: () => {} };
    expect(await verbs('/not/there', [], {}, context)).toBe(0);
  });

  test('while it starts: there is a listener all the time', async () => {
    const others = process.listenerCount('SIGTERM');
    let listeners = 0;
    const context = {
      io: io(),
      interrupted: new AbortController().signal,
      releaseSignals: () => {
        listeners = process.listenerCount('SIGTERM') - others;
      },
    };
    expect(await verbs(process.execPath, ['-e', ''], {}, context)).toBe(0);
    expect(listeners).toBe(1);
    expect(process.listenerCount('SIGTERM')).toBe(others);
  });
});
