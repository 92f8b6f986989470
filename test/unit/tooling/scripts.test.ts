import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const { scripts } = JSON.parse(readFileSync(`${root}package.json`, 'utf8')) as {
  scripts: Record<string, string>;
};
/** Those that are one program of ours. The others call programs, one after the other. */
const programs = Object.entries(scripts).filter(([, line]) => /^node [^&]*$/.test(line));

/** Runs a script as `npm run` does. It does nothing but answer, so it takes no time. */
const run = (line: string, option: string) =>
  new Promise<{ code: number; text: string }>((done) => {
    const [, ...words] = line.split(' ');
    execFile(process.execPath, [...words, option], { cwd: root, timeout: 30_000 }, (error, out, err) =>
      done({ code: error === null ? 0 : Number(error.code ?? -1), text: `${out}${err}` }),
    );
  });

describe.each(programs)('npm run %s', (_name, line) => {
  test('--help says what it takes, and does nothing', async () => {
    const { code, text } = await run(line, '--help');
    expect({ code, text }).toEqual({ code: 0, text: expect.stringMatching(/^usage: npm/im) });
  });

  test('an option that does not exist is named, with what there is', async () => {
    const { code, text } = await run(line, '--bogus');
    expect({ code, text }).toEqual({
      code: 2,
      text: expect.stringMatching(/unknown option '?--bogus[\s\S]*usage: npm/i),
    });
    expect(text).not.toMatch(/^ +at /m);
  });
});
