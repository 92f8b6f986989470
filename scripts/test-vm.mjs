/**
 * `npm run test:vm`: the transport on the kernel's own RDMA (rxe), in a virtual machine with Debian's stock kernel.
 * No adapter, no KVM and no root is needed: QEMU emulates the processor, and the machine's disk is this one, read-only.
 * The last line is 'N passed, N failed, N skipped'; exit code 0 if nothing failed.
 *
 *   node scripts/test-vm.mjs [--no-build] [--program FILE]
 *
 * --no-build takes the addon, dist/ and the C++ tests (build/tests) as they are; --program runs another one in the machine.
 * MILLRACE_VM_ACCEL=kvm uses KVM in place of the emulation; MILLRACE_NO_APT=1 never downloads the kernel's package.
 */
import { mkdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import {
  buildNative,
  buildTypeScript,
  commandLine,
  duration,
  endWithChildren,
  logs,
  missing,
  packagesOf,
  root,
  say,
  tail,
} from './setup.mjs';
import { buildNativeTests } from './suites/cpp.mjs';
import { prepareKernel } from './vm/kernel.mjs';
import { boot } from './vm/machine.mjs';

/** From the machine's start to its end. It takes two minutes; under a loaded host several times that. */
const LIMIT_MS = 9 * 60_000;
const TOOLS = ['compiler', 'cmake', 'make', 'verbs', 'gtest', 'qemu', 'busybox', 'kmod', 'rdma', 'ibverbs'];

const { values: options } = commandLine(
  `Usage: npm run test:vm [-- OPTIONS]

The transport on the kernel's RDMA (rxe), in a virtual machine.
  --no-build      takes the addon, dist/ and the C++ tests as they are
  --program FILE  runs another program in the machine`,
  { 'no-build': { type: 'boolean' }, program: { type: 'string' } },
);
const program = options.program ? resolve(options.program) : join(root, 'test', 'vm', 'guest.mjs');

const give_up = (text, failed = 1) => {
  say(`  ${text}`);
  say(`0 passed, ${failed} failed, ${1 - failed} skipped`);
  process.exit(failed);
};

const absent = missing(TOOLS);
if (absent.length > 0)
  give_up(`not run: vm (apt-get install ${packagesOf(absent)})`, process.env.CI === 'true' ? 1 : 0);

mkdirSync(logs, { recursive: true });
const kernelLog = join(logs, 'vm-console.log');
let machine;
endWithChildren(() => machine?.kill('SIGKILL'));

if (!options['no-build']) {
  say('  building   the addon, dist/ and the C++ tests');
  const context = { log: join(logs, 'vm-build.log'), env: {}, left: () => 30 * 60_000 };
  if (!((await buildNative()) && (await buildTypeScript()) && (await buildNativeTests(context))))
    give_up('the build failed: see build/logs/');
}

let image;
try {
  image = await prepareKernel(join(logs, 'vm-kernel.log'));
} catch (error) {
  give_up(`the kernel could not be prepared: ${error.message}`);
}
say(`  kernel     ${image.version}, booting (about 10 s)`);

const began = Date.now();
let counts;
const result = await boot(image, {
  program,
  console: kernelLog,
  limitMs: LIMIT_MS,
  onStart: (child) => {
    machine = child;
  },
  onLine: (line) => {
    counts = /^(\d+) passed, (\d+) failed, (\d+) skipped$/.exec(line) ?? counts;
    if (!/^\d+ passed, /.test(line)) say(line);
  },
});
say(`  the machine ran for ${duration(Date.now() - began)}`);

let [passed, failed, skipped] = counts ? counts.slice(1).map(Number) : [0, 0, 0];
if (!counts || (result.code !== 0 && failed === 0)) {
  failed += 1;
  say(
    `  FAILED  ${result.timedOut ? `switched off after ${duration(LIMIT_MS)}` : 'the machine ended early'}`,
  );
  say(tail(`${result.said}\n${readFileSync(kernelLog, 'utf8')}`, 30));
}
say(`${passed} passed, ${failed} failed, ${skipped} skipped`);
process.exit(failed > 0 ? 1 : 0);
