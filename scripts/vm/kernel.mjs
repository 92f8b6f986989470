/**
 * The kernel of the virtual machine: Debian's own package, downloaded and unpacked (never installed) to build/vm/, and
 * an initramfs of busybox and the modules that rxe needs.
 */
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { basename, join } from 'node:path';
import { root, run, say, tail, which } from '../setup.mjs';

const cache = join(root, 'build', 'vm');

/** In the order of insertion, each after what it depends on. Without crc32_generic, adding rxe fails with ENOENT. */
const MODULES = [
  'virtio_pci',
  'virtio_net',
  '9pnet_virtio',
  '9p',
  'overlay',
  'veth',
  'crc32_generic',
  'crc32c_generic',
  'rdma_rxe',
  'ib_uverbs',
];

const output = (command, args, options = {}) => {
  const r = spawnSync(command, args, { encoding: 'utf8', maxBuffer: 1 << 26, ...options });
  if (r.status !== 0) throw new Error(`${command} ${args.join(' ')}: ${r.error?.message ?? r.stderr.trim()}`);
  return r.stdout;
};

/** The unpacked package, or undefined. */
function unpacked() {
  if (!existsSync(cache)) return undefined;
  const name = readdirSync(cache)
    .filter((entry) => /^linux-image-.*-amd64$/.test(entry))
    .sort()
    .at(-1);
  return name === undefined ? undefined : join(cache, name);
}

/** The name of the package that linux-image-amd64 stands for now. */
const packageName = () =>
  /Depends: (linux-image-\S+)/.exec(output('apt-cache', ['depends', 'linux-image-amd64']))?.[1];

async function must(command, args, options) {
  const result = await run(command, args, options);
  if (result.code !== 0)
    throw new Error(`${command} ${args.join(' ')} ended with ${result.code}\n${tail(result.text, 10)}`);
}

/** Downloads and unpacks the kernel's package. @returns its folder */
async function unpack(log) {
  if (process.env.MILLRACE_NO_APT === '1')
    throw new Error(
      'the kernel is not in build/vm/, and MILLRACE_NO_APT=1 forbids to download it. Run once without it.',
    );
  if (!which('apt-get') || !which('dpkg-deb')) throw new Error('this needs apt-get and dpkg-deb (Debian)');
  const work = join(cache, 'download');
  rmSync(work, { recursive: true, force: true });
  mkdirSync(work, { recursive: true });
  let name = packageName();
  if (name === undefined || (await run('apt-get', ['download', name], { log, cwd: work })).code !== 0) {
    // A fresh system has no package lists.
    await run('apt-get', ['update', '-q'], { log, append: true });
    name = packageName();
    if (name === undefined) throw new Error('apt knows no package linux-image-amd64');
    await must('apt-get', ['download', name], { log, append: true, cwd: work });
  }
  const file = readdirSync(work).find((entry) => entry.endsWith('.deb'));
  const folder = join(work, 'root');
  await must('dpkg-deb', ['-x', join(work, file), folder], { log, append: true });
  const [version] = readdirSync(join(folder, 'lib', 'modules'));
  await must('depmod', ['-b', folder, version], { log, append: true });
  const target = join(cache, name);
  rmSync(target, { recursive: true, force: true });
  renameSync(folder, target);
  rmSync(work, { recursive: true, force: true });
  return target;
}

/** The modules' files, each behind those that it depends on. */
function moduleFiles(folder, version) {
  const files = new Set();
  for (const name of MODULES) {
    const text = output('modprobe', ['-d', folder, '-S', version, '--show-depends', name]);
    for (const line of text.split('\n')) {
      const file = /^insmod (\S+)/.exec(line)?.[1];
      if (file !== undefined) files.add(file);
    }
  }
  return [...files];
}

/** Packs the initramfs. @returns its path */
function initramfs(folder, version) {
  const staged = join(cache, 'initramfs');
  rmSync(staged, { recursive: true, force: true });
  mkdirSync(join(staged, 'bin'), { recursive: true });
  mkdirSync(join(staged, 'modules'));
  copyFileSync(which('busybox'), join(staged, 'bin', 'busybox'));
  chmodSync(join(staged, 'bin', 'busybox'), 0o755);
  copyFileSync(join(root, 'test', 'vm', 'init'), join(staged, 'init'));
  chmodSync(join(staged, 'init'), 0o755);
  moduleFiles(folder, version).forEach((file, i) => {
    copyFileSync(file, join(staged, 'modules', `${String(i).padStart(2, '0')}-${basename(file)}`));
  });
  const archive = join(cache, 'initramfs.cpio');
  const names = output('find', ['.'], { cwd: staged });
  const packed = spawnSync('busybox', ['cpio', '-o', '-H', 'newc'], {
    cwd: staged,
    input: names,
    maxBuffer: 1 << 28,
  });
  if (packed.status !== 0) throw new Error(`cpio: ${packed.stderr}`);
  writeFileSync(archive, packed.stdout);
  rmSync(staged, { recursive: true, force: true });
  return archive;
}

/**
 * Kernel and initramfs, from the cache or the package.
 * @param {string} log file for what the tools print
 * @returns {Promise<{ kernel: string, initramfs: string, version: string }>}
 * @throws Error with the reason and what to do
 */
export async function prepareKernel(log) {
  let folder = unpacked();
  if (folder === undefined) {
    say('  kernel     downloading linux-image-amd64 (70 MB, once)');
    folder = await unpack(log);
  }
  const [version] = readdirSync(join(folder, 'lib', 'modules'));
  const kernel = join(folder, 'boot', `vmlinuz-${version}`);
  if (readFileSync(kernel).length === 0) throw new Error(`${kernel} is empty: remove ${cache}`);
  return { kernel, initramfs: initramfs(folder, version), version };
}
