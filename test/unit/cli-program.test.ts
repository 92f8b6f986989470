import { Writable } from 'node:stream';
import { describe, expect, test } from 'vitest';
import { CODES } from '../../src/errors.js';
import { command } from '../support/cli-command.js';

describe('help and version', () => {
  test('the version is that of the package', async () => {
    expect(await command('--version')).toMatchObject({
      exit: 0,
      out: expect.stringMatching(/^\d+\.\d+\.\d+/),
      err: '',
    });
  });

  test.each([
    '',
    'pub ',
    'sub ',
    'ls ',
    'clean ',
    'doctor ',
    'verbs ',
    'steer ',
    'steer validate ',
    'steer explain ',
    'errors ',
  ])('%s--help has a description, all options and examples', async (name) => {
    const { exit, out, err } = await command(`${name}--help`);
    expect({ exit, err }).toEqual({ exit: 0, err: '' });
    expect(out).toContain('Examples:');
    expect(out).toContain(`millrace ${name}`);
    if (['pub ', 'sub ', 'ls ', 'clean '].includes(name)) {
      for (const option of ['--domain', '--timeout', '--json']) expect(out).toContain(option);
    }
    expect(out).not.toContain('default: false');
  });

  test('without a command: the help on standard error, and usage', async () => {
    const { exit, out, err } = await command('');
    expect({ exit, out }).toEqual({ exit: 2, out: '' });
    expect(err).toContain('Commands:');
  });

  test('MILLRACE_DOMAIN is the default, unless it is empty', async () => {
    expect(
      (await command('ls --help', { env: { MILLRACE_DOMAIN: 'mine' } })).out.replace(/\s+/g, ' '),
    ).toContain('default: "mine"');
    expect((await command('ls --help', { env: { MILLRACE_DOMAIN: '' } })).out.replace(/\s+/g, ' ')).toContain(
      'default: "default"',
    );
  });
});

describe('wrong usage', () => {
  test.each([
    ['nonsense', 'ERR_INVALID_ARGUMENT', /unknown command 'nonsense'/],
    ['pub', 'ERR_INVALID_ARGUMENT', /missing required argument 'channel'/],
    ['sub', 'ERR_INVALID_ARGUMENT', /missing required argument 'pattern'/],
    ['sub a --cuont 3', 'ERR_UNKNOWN_OPTION', /Did you mean --count/],
    ['sub a --count 0', 'ERR_INVALID_ARGUMENT', /at least 1/],
    ['sub a --timeout soon', 'ERR_INVALID_ARGUMENT', /time such as/],
    ['sub a --overflow never', 'ERR_INVALID_ARGUMENT', /drop-oldest/],
    ['sub a b', 'ERR_INVALID_ARGUMENT', /too many arguments/],
    ['pub a --codec xml', 'ERR_INVALID_ARGUMENT', /msgpackr, json, bytes/],
    ['pub a --jsonl --codec bytes', 'ERR_INVALID_ARGUMENT', /exclude each other/],
    ['ls --domain=', 'ERR_INVALID_ARGUMENT', /must not be empty/],
    ['verbs', 'ERR_INVALID_ARGUMENT', /missing required argument 'program'/],
    ['verbs --link token-ring -- true', 'ERR_INVALID_ARGUMENT', /infiniband, ethernet/],
    ['verbs --devices 9 -- true', 'ERR_INVALID_ARGUMENT', /from 1 to 8/],
    ['steer validate', 'ERR_INVALID_ARGUMENT', /missing required argument 'file'/],
    ['steer explain rules.yaml', 'ERR_INVALID_ARGUMENT', /either --pcap FILE or --packet HEX/],
    ['verbs --fabric a/b -- true', 'ERR_INVALID_ARGUMENT', /file name/],
  ])('%s', async (words, code, message) => {
    const { exit, out, err } = await command(words);
    expect({ exit, out }).toEqual({ exit: 2, out: '' });
    expect(err).toMatch(message);
    expect(err).toMatch(new RegExp(`^millrace: .*\\(${code}\\)\n  Run millrace .*--help`));
    expect(err.split('\n')).toHaveLength(3);
  });

  test('as JSON when asked for', async () => {
    const { exit, err } = await command('sub a --json --count x');
    expect(exit).toBe(2);
    expect(JSON.parse(err)).toMatchObject({ error: { code: 'ERR_INVALID_ARGUMENT' } });
  });
});

describe('errors', () => {
  test('lists all codes', async () => {
    const { exit, out } = await command('errors');
    expect(exit).toBe(0);
    expect(
      out
        .trimEnd()
        .split('\n')
        .map((line) => line.split(' ')[0]),
    ).toEqual(Object.keys(CODES));
  });

  test.each(['ERR_SHM_FULL', 'err_shm_full', 'shm_full'])('explains %s', async (code) => {
    const { exit, out } = await command(`errors ${code}`);
    expect(exit).toBe(0);
    expect(out).toContain(CODES.ERR_SHM_FULL.cause);
    expect(out).toContain(CODES.ERR_SHM_FULL.remedy);
  });

  test('an unknown code is nothing found, with what is near', async () => {
    const { exit, out, err } = await command('errors FOLDER');
    expect({ exit, out }).toEqual({ exit: 3, out: '' });
    expect(err).toContain('Did you mean ERR_FOLDER_OWNER');
  });

  test('as JSON', async () => {
    expect(JSON.parse((await command('errors ERR_PATTERN --json')).out)).toEqual({
      code: 'ERR_PATTERN',
      ...CODES.ERR_PATTERN,
    });
    expect(JSON.parse((await command('errors --json')).out)).toHaveLength(Object.keys(CODES).length);
  });
});

describe('colours', () => {
  const control = String.fromCharCode(27);
  test('only on a terminal, and not against NO_COLOR', async () => {
    expect((await command('errors ERR_PATTERN', { tty: true })).out).toContain(control);
    expect((await command('errors ERR_PATTERN')).out).not.toContain(control);
    expect((await command('errors ERR_PATTERN', { tty: true, env: { NO_COLOR: '1' } })).out).not.toContain(
      escape,
    );
    expect((await command('nonsense', { tty: true })).err).toContain(control);
  });
});

test('a closed standard output ends a command without a word', async () => {
  const closed = new Writable({
    write: (_chunk, _encoding, done) => done(Object.assign(new Error('EPIPE'), { code: 'EPIPE' })),
  });
  expect(await command('errors', { stdout: closed })).toMatchObject({ exit: 0, err: '' });
});

test('a standard output that fails otherwise is an error', async () => {
  const full = new Writable({
    write: (_chunk, _encoding, done) => done(Object.assign(new Error('write ENOSPC'), { code: 'ENOSPC' })),
  });
  const { exit, err } = await command('errors', { stdout: full });
  expect(exit).toBe(1);
  expect(err).toContain('ENOSPC');
});

test('signal handlers are given back', async () => {
  const before = process.listenerCount('SIGINT');
  await command('errors');
  expect(process.listenerCount('SIGINT')).toBe(before);
});
