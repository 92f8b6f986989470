import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readmePrograms } from '../support/readme';

/**
 * What a user gets: the tarball, installed without scripts into an empty project with rxjs beside it, on a PATH that has
 * no compiler.
 */
const place = mkdtempSync(join(tmpdir(), 'millrace-package-'));
const project = join(place, 'project');
const shm = mkdtempSync(join(process.env.MILLRACE_SHM_DIR ?? '/dev/shm', 'p-'));
const root = resolve('.');
const running = new Set<ChildProcess>();

const which = (name: string, path = process.env.PATH ?? '') =>
  path
    .split(':')
    .map((folder) => join(folder, name))
    .find((file) => existsSync(file));

/** A PATH with nothing but what npm itself needs. */
function barePath() {
  const bin = join(place, 'bin');
  mkdirSync(bin);
  symlinkSync(process.execPath, join(bin, 'node'));
  for (const name of ['sh', 'env', 'uname']) {
    const found = which(name);
    if (found) symlinkSync(realpathSync(found), join(bin, name));
  }
  for (const name of [
    'cc',
    'c++',
    'gcc',
    'g++',
    'clang',
    'clang++',
    'cmake',
    'make',
    'ninja',
    'node-gyp',
    'python3',
  ]) {
    expect(which(name, bin), name).toBeUndefined();
  }
  return bin;
}

let env: NodeJS.ProcessEnv;

function node(args: string[]) {
  const result = spawnSync(process.execPath, args, { cwd: project, encoding: 'utf8', env, timeout: 60_000 });
  expect({ status: result.status, stderr: result.stderr }, args.join(' ')).toEqual({ status: 0, stderr: '' });
  return result.stdout;
}

beforeAll(() => {
  execFileSync(process.execPath, ['scripts/prebuild.mjs'], { stdio: 'pipe' });
  const npm = realpathSync(which('npm') ?? join(dirname(process.execPath), 'npm'));
  const run = (cwd: string, ...args: string[]) =>
    execFileSync(process.execPath, [npm, ...args], {
      cwd,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
      env,
    });
  env = { ...process.env, PATH: barePath(), MILLRACE_SHM_DIR: shm, NODE_OPTIONS: '' };
  delete env.NODE_PATH;
  const [packed] = JSON.parse(run(root, 'pack', '--ignore-scripts', '--json', '--pack-destination', place));
  mkdirSync(project);
  writeFileSync(join(project, 'package.json'), '{ "private": true }');
  const { devDependencies } = JSON.parse(readFileSync('package.json', 'utf8'));
  const quiet = ['--no-audit', '--no-fund', '--prefer-offline'];
  run(
    project,
    'install',
    '--ignore-scripts',
    ...quiet,
    join(place, packed.filename),
    `rxjs@${devDependencies.rxjs}`,
  );
});

afterAll(() => {
  for (const child of running) child.kill('SIGKILL');
  rmSync(place, { recursive: true, force: true });
  rmSync(shm, { recursive: true, force: true });
});

test('nothing runs at install time, and everything that is needed is inside', () => {
  const folder = join(project, 'node_modules', 'millrace');
  const { scripts = {}, bin } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
  for (const name of ['preinstall', 'install', 'postinstall', 'prepare'])
    expect(scripts[name]).toBeUndefined();
  const files = (readdirSync(folder, { recursive: true }) as string[]).map(String);
  // npm runs node-gyp for a package with a binding.gyp, install script or not.
  expect(files.filter((name) => /binding\.gyp$|CMakeLists|\.cc$|^src|^test/.test(name))).toEqual([]);
  for (const name of [
    ...[
      'dist/index.js',
      'dist/index.mjs',
      'dist/index.d.ts',
      'dist/index.d.mts',
      bin.millrace.replace('./', ''),
    ],
    ...['prebuilds/linux-x64-glibc/millrace.node', 'prebuilds/linux-x64-glibc/verbs/libibverbs.so.1'],
    ...['README.md', 'LICENSE', 'CHANGELOG.md'],
  ]) {
    expect(files, name).toContain(name);
  }
  for (const facts of ['floor.json', join('verbs', 'floor.json')]) {
    const floor = JSON.parse(readFileSync(join(folder, 'prebuilds', 'linux-x64-glibc', facts), 'utf8'));
    expect(floor).toMatchObject({ glibcxx: null, cxxabi: null });
    // The README states it.
    expect(readFileSync('README.md', 'utf8')).toContain(`glibc ${floor.promised}`);
  }
});

test('import and require give the same implementation', () => {
  writeFileSync(
    join(project, 'same.mjs'),
    `import * as face from 'millrace';
     import { createRequire } from 'node:module';
     const implementation = createRequire(import.meta.url)('millrace');
     const names = Object.keys(implementation).filter((name) => name !== 'default').sort();
     console.log(JSON.stringify({
       join: face.join === implementation.join && typeof face.join === 'function',
       all: names.every((name) => face[name] === implementation[name]),
       names: names.join() === Object.keys(face).filter((name) => name !== 'default').sort().join(),
     }));`,
  );
  expect(JSON.parse(node(['same.mjs']))).toEqual({ join: true, all: true, names: true });
});

const kinds = ['mjs', 'cjs'] as const;
type Kind = (typeof kinds)[number];

/** A program of the README, as an ES module or as CommonJS. */
function write(name: string, kind: Kind) {
  const program = readmePrograms().find((each) => each.name.startsWith(name));
  if (!program) throw new Error(`the README has no ${name}`);
  const file = join(project, `${name}.${kind}`);
  const imports = /^import (\{[^}]*\}) from ('[^']+');$/gm;
  writeFileSync(
    file,
    kind === 'mjs'
      ? program.code
      : `${program.code.replace(imports, 'const $1 = require($2);')}`.replace(
          /^([\s\S]*require\([^)]*\);\n)([\s\S]*)$/,
          '$1(async () => {\n$2\n})();',
        ),
  );
  return file;
}

function start(file: string) {
  const child = spawn(process.execPath, [file], { cwd: project, env, stdio: ['ignore', 'pipe', 'pipe'] });
  running.add(child);
  child.once('exit', () => running.delete(child));
  let errors = '';
  child.stderr.on('data', (chunk) => {
    errors += chunk;
  });
  const end = once(child, 'close').then(([code, signal]) => ({ code, signal, errors }));
  return { child, end, lines: createInterface({ input: child.stdout }) };
}

test.each(kinds.flatMap((pub) => kinds.map((sub): [Kind, Kind] => [pub, sub])))(
  'the README’s example: %s publisher, %s subscriber',
  async (pub, sub) => {
    env.MILLRACE_FABRIC = `t${randomBytes(6).toString('hex')}`;
    const subscriber = start(write('subscriber', sub));
    const line = once(subscriber.lines, 'line');
    const publisher = start(write('publisher', pub));
    expect(await publisher.end).toEqual({ code: 0, signal: null, errors: '' });
    expect((await line)[0]).toBe('ticks.eurusd { bid: 1.0841, ask: 1.0843 }');
    subscriber.child.kill('SIGTERM');
    expect((await subscriber.end).errors).toBe('');
  },
);

test('the command runs', () => {
  const help = node([join('node_modules', 'millrace', 'dist', 'cli', 'main.js'), '--help']);
  for (const word of ['pub', 'sub', 'ls', 'clean']) expect(help).toContain(word);
  expect(existsSync(join(project, 'node_modules', '.bin', 'millrace'))).toBe(true);
});

test('the drop-in library is found, and loads', () => {
  const main = join('node_modules', 'millrace', 'dist', 'cli', 'main.js');
  // Whatever the program is: the dynamic loader finds the library by its name.
  const program = ['/usr/bin/env', 'LD_PRELOAD=libibverbs.so.1', 'LD_BIND_NOW=1', process.execPath];
  const source = `require('node:fs').readFileSync('/proc/self/maps', 'utf8')`;
  expect(node([main, 'verbs', '--', ...program, '-p', source])).toContain(
    '/millrace/prebuilds/linux-x64-glibc/verbs/libibverbs.so.1',
  );
});

test('the types are right for both kinds of importer', () => {
  for (const extension of ['mts', 'cts']) {
    writeFileSync(
      join(project, `types.${extension}`),
      `import { Channel, join, Member, MillraceError, Pattern } from 'millrace';
       export async function main(): Promise<void> {
         const member = await join('types');
         const channel = member.channel<{ bid: number }>('ticks');
         channel.subscribe((tick) => {
           const bid: number = tick.bid;
           // @ts-expect-error there is no such field
           void tick.ask;
           void bid;
         });
         await member.leave().catch((error: unknown) => {
           if (!(error instanceof MillraceError)) return;
           const [code, errno]: [string, number | undefined] = [error.code, error.errno];
           void [code, errno];
         });
         // @ts-expect-error what is internal is not declared
         void channel.settings;
         // @ts-expect-error what is internal is not declared
         channel.end();
         // @ts-expect-error what is internal is not declared
         void member.pattern('ticks.*').listeners;
         // @ts-expect-error members are made by join()
         void new Member();
         // @ts-expect-error channels are made by members
         void new Channel();
         // @ts-expect-error and so are patterns
         void new Pattern();
       }`,
    );
  }
  const tsc = join(root, 'node_modules', 'typescript', 'bin', 'tsc');
  const options = [
    '--noEmit',
    '--strict',
    '--target',
    'es2022',
    '--module',
    'node16',
    '--skipLibCheck',
    'false',
  ];
  const types = ['--typeRoots', join(root, 'node_modules', '@types'), '--types', 'node'];
  const lib = ['--lib', 'es2023,esnext.disposable,dom,dom.asynciterable'];
  const result = spawnSync(process.execPath, [tsc, ...options, ...types, ...lib, 'types.mts', 'types.cts'], {
    cwd: project,
    encoding: 'utf8',
  });
  expect({ status: result.status, stdout: result.stdout }).toEqual({ status: 0, stdout: '' });
});
