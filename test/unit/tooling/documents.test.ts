import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { readmePrograms } from '../../support/readme';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const own = (name: string) => !/^(node_modules|build|dist|\.)/.test(name);
const documents = readdirSync(root)
  .filter(own)
  .flatMap((name) =>
    name.endsWith('.md')
      ? [name]
      : statSync(join(root, name)).isDirectory()
        ? readdirSync(join(root, name), { recursive: true }).map((below) => join(name, String(below)))
        : [],
  )
  .filter((name) => name.endsWith('.md') && !name.includes('node_modules'));
const read = (name: string) => readFileSync(join(root, name), 'utf8');
/** The anchors of a page's headings, as GitHub makes them. */
const anchors = (text: string) =>
  [...text.matchAll(/^#+ (.*)$/gm)].map(([, heading]) =>
    heading!
      .toLowerCase()
      .replace(/[^\p{L}\p{N}_\- ]/gu, '')
      .replaceAll(' ', '-'),
  );

describe('the documents', () => {
  it('are found', () => {
    for (const name of ['README.md', 'docs/errors.md', 'native/models/README.md'])
      expect(documents).toContain(name);
  });

  it.each(documents)('%s links to files and headings that exist', (name) => {
    const links = [...read(name).matchAll(/\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)/g)];
    const dead = links.filter(([, file, anchor]) => {
      const target = file === '' ? name : relative(root, resolve(root, dirname(name), file!));
      if (!existsSync(join(root, target))) return true;
      return anchor !== undefined && target.endsWith('.md') && !anchors(read(target)).includes(anchor);
    });
    expect(dead.map(([link]) => link)).toEqual([]);
  });

  it.each(documents)('%s names files and folders that exist', (name) => {
    const paths = [...read(name).matchAll(/`((?:native|src|test|scripts|examples|docs)\/[\w./-]+)`/g)].map(
      (m) => m[1]!,
    );
    // Words in capitals stand for any.
    const gone = paths
      .filter((path) => !/[A-Z]{3}/.test(path) || path.endsWith('.md'))
      .filter(
        (path) => !['', '.ts', '.cc', '.h', '.mjs'].some((ending) => existsSync(join(root, path + ending))),
      );
    expect(gone).toEqual([]);
  });

  it.each(['channels', 'steering'])(
    'ARCHITECTURE.md: the table of src/%s is of the files that are there',
    (folder) => {
      const [, table = ''] = read('ARCHITECTURE.md').split(`| file of \`src/${folder}\` | what it does |\n`);
      const cells = table
        .split('\n\n')[0]!
        .split('\n')
        .slice(1)
        .map((row) => row.split('|')[1] ?? '');
      // In a cell, a folder is said once.
      const named = cells.flatMap((cell) => {
        const names = [...cell.matchAll(/`([\w./-]+)`/g)].map((m) => m[1]!);
        const [, within = ''] = /^(.*\/)./.exec(names[0] ?? '') ?? [];
        return names.map((one) => [one, within + one]);
      });
      expect(named.length).toBeGreaterThan(15);
      const there = (one: string) =>
        ['', '.ts'].some((ending) => existsSync(join(root, 'src', folder, one + ending)));
      expect(named.filter((ways) => !ways.some(there)).map(([one]) => one)).toEqual([]);
    },
  );

  it('ARCHITECTURE.md: what hurts elsewhere has the tests that it names', () => {
    const [, section = ''] = read('ARCHITECTURE.md').split('## What hurts elsewhere');
    const rows = [...section.split('\n## ')[0]!.matchAll(/^\| (.+) \| `(test\/[^`]+)`: "(.+)".* \|$/gm)];
    expect(rows.length).toBe(26);
    for (const [, , file, title] of rows) expect(read(file!), title).toContain(title);
  });

  it('the README has the two programs that the package test runs', () => {
    const programs = readmePrograms();
    expect(programs.map((program) => program.name)).toEqual(['subscriber.mjs', 'publisher.mjs']);
    for (const { code } of programs) expect(code).toContain("from 'millrace'");
  });

  it('the README states the payload limit of the default slot', () => {
    // slotBytes - frame header - record header, rounded down to 8: see ARCHITECTURE.md, Wire format.
    const limit = Math.floor((16384 - 64 - 32) / 8) * 8;
    expect(readFileSync(join(root, 'README.md'), 'utf8')).toContain(`${limit.toLocaleString('en-US')} bytes`);
  });
});
