import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { readmePrograms } from '../../support/readme';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const documents = [
  root,
  join(root, 'docs'),
  join(root, 'examples', 'frames'),
  join(root, 'native', 'models'),
  join(root, 'bench'),
]
  .filter((folder) => existsSync(folder))
  .flatMap((folder) => readdirSync(folder).map((name) => join(folder, name)))
  .filter((path) => path.endsWith('.md'));

describe('the documents', () => {
  it.each(documents.map((path) => path.slice(root.length)))('%s links to files that exist', (name) => {
    const path = join(root, name);
    const targets = [...readFileSync(path, 'utf8').matchAll(/\]\((?!https?:|#|mailto:)([^)#\s]+)/g)].map(
      (m) => m[1],
    );
    expect(targets.filter((target) => !existsSync(resolve(dirname(path), target)))).toEqual([]);
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
