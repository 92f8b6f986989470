/**
 * Copies the built addon and the drop-in libibverbs.so.1, stripped, to prebuilds/linux-x64-glibc/ for the package, and
 * checks what they ask of the machine that loads them: the newest symbol versions of glibc, and nothing else than glibc.
 *
 *   node scripts/prebuild.mjs
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { root, say } from './setup.mjs';

/** The floor that the README promises: what Node.js's own Linux binaries need since version 18. See glibc_floor.cc. */
const FLOOR = '2.28';
/** The libraries that may be needed; all are glibc's. */
const LIBRARIES = [
  'libc.so.6',
  'libm.so.6',
  'libdl.so.2',
  'libpthread.so.0',
  'librt.so.1',
  'ld-linux-x86-64.so.2',
];
const folder = join(root, 'prebuilds', 'linux-x64-glibc');
/** What is shipped, where, and what it may export. */
const FILES = [
  {
    source: join(root, 'build', 'Release', 'millrace.node'),
    target: join(folder, 'millrace.node'),
    facts: 'floor.json',
    exports: /^napi_register_module_v1$/,
  },
  {
    source: join(root, 'build', 'Release', 'verbs', 'libibverbs.so.1'),
    target: join(folder, 'verbs', 'libibverbs.so.1'),
    facts: join('verbs', 'floor.json'),
    exports:
      /^(_?ibv_|verbs_|_verbs_|__verbs_log$|__ioctl_|execute_ioctl$|mult_to_ibv_rate$|mbps_to_ibv_rate$)/,
  },
];

function give_up(text) {
  say(text);
  process.exit(1);
}
function tool(command, args) {
  const r = spawnSync(command, args, { encoding: 'utf8', maxBuffer: 64 << 20 });
  if (r.error?.code === 'ENOENT')
    give_up(`${command} is missing. On Debian: sudo apt-get install -y binutils`);
  if (r.status !== 0) give_up(`${command} ${args.join(' ')}\n${r.stderr}`);
  return r.stdout;
}
const compare = (a, b) => {
  const [x, y] = [a, b].map((v) => v.split('.').map(Number));
  for (let i = 0; i < Math.max(x.length, y.length); i++)
    if ((x[i] ?? 0) !== (y[i] ?? 0)) return (x[i] ?? 0) - (y[i] ?? 0);
  return 0;
};

const faults = [];
for (const { source, target, facts, exports } of FILES) {
  if (!existsSync(source)) give_up(`${relative(root, source)} is not there. Run: npm run build:native`);
  mkdirSync(dirname(target), { recursive: true });
  tool('strip', ['--strip-unneeded', '-o', target, source]);

  const symbols = tool('objdump', ['-T', target]).split('\n');
  const newest = (family) => {
    const seen = symbols.flatMap((line) => new RegExp(`\\b${family}_([0-9.]+)`).exec(line)?.[1] ?? []);
    return seen.sort(compare).at(-1) ?? null;
  };
  const floor = { glibc: newest('GLIBC'), glibcxx: newest('GLIBCXX'), cxxabi: newest('CXXABI') };
  const needed = [...tool('objdump', ['-p', target]).matchAll(/NEEDED\s+(\S+)/g)].map((m) => m[1]);
  const exported = symbols.filter((l) => / g .* \.text\s/.test(l)).map((l) => l.trim().split(/\s+/).at(-1));
  const bytes = statSync(target).size;
  writeFileSync(
    join(folder, facts),
    `${JSON.stringify({ promised: FLOOR, ...floor, needed, bytes }, null, 2)}\n`,
  );

  const name = relative(root, target);
  say(`${name}: ${bytes >> 10} KiB, glibc >= ${floor.glibc}, needs ${needed.join(', ')}`);
  if (floor.glibc !== null && compare(floor.glibc, FLOOR) > 0) {
    const culprits = symbols.filter((l) => compare(/\bGLIBC_([0-9.]+)/.exec(l)?.[1] ?? '0', FLOOR) > 0);
    faults.push(`${name} needs glibc ${floor.glibc}, above the promised ${FLOOR}, because of:`);
    faults.push(...culprits.map((l) => `  ${l.trim().split(/\s+/).slice(-2).join(' ')}`));
  }
  if (floor.glibcxx || floor.cxxabi)
    faults.push(`${name} needs a libstdc++, which should be linked statically`);
  for (const library of needed) if (!LIBRARIES.includes(library)) faults.push(`${name} needs ${library}`);
  for (const symbol of exported) if (!exports.test(symbol)) faults.push(`${name} exports ${symbol}`);
}
for (const fault of faults) say(fault);
process.exitCode = faults.length > 0 ? 1 : 0;
