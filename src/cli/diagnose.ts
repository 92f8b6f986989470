import type { OtherLayout } from '../cluster/layouts.js';
import type { NativeProbe } from '../native/devices.js';
import { toSize } from './render.js';

/** What `millrace doctor` looks at, gathered; {@link diagnose} is a pure function of it. */
export interface Facts {
  /** Null when the addon could not be loaded: `addonProblem` says why. */
  readonly probe: NativeProbe | null;
  readonly addonProblem: string | null;
  /** The folder for shared memory (MILLRACE_SHM_DIR, or /dev/shm). */
  readonly memory: {
    readonly folder: string;
    /** Null when it cannot be used; `problem` says why. */
    readonly bytes: number | null;
    readonly free: number | null;
    /** Whether it is in memory (tmpfs, ramfs, hugetlbfs). */
    readonly inMemory: boolean;
    readonly problem: string | null;
  };
  /** Folders that another version of this library uses. */
  readonly others: readonly OtherLayout[];
  /** Whether this process may lock memory beyond the limit (CAP_IPC_LOCK). */
  readonly mayLock: boolean;
  /** kernel.yama.ptrace_scope; null where Yama is not there. */
  readonly ptraceScope: number | null;
  /** Whether this process may look into any other (CAP_SYS_PTRACE). */
  readonly mayTrace: boolean;
  /** The device that a member would use: MILLRACE_DEVICE, or 'soft'. */
  readonly device: string;
}

/** Something to know. A `problem` keeps members from working, a `remark` does not. */
export interface Finding {
  readonly level: 'problem' | 'remark';
  readonly about: 'addon' | 'device' | 'memory' | 'memlock' | 'ptrace' | 'layout';
  readonly text: string;
  /** What to change; empty where there is nothing to be done. */
  readonly remedy: string;
}

/** What a domain starts at, a member (DESIGN: about 3 MiB), times a few members. */
const LITTLE_MEMORY = 16 << 20;
/** What a member registers with the defaults: send arena, bounce slots and headers, and the inbox. */
const REGISTERED = 8 << 20;

/** What is wrong, or worth knowing, and what to change. Problems first. */
export function diagnose(facts: Facts): Finding[] {
  const found: Finding[] = [];
  const add = (level: Finding['level'], about: Finding['about'], text: string, remedy = '') =>
    found.push({ level, about, text, remedy });

  if (facts.addonProblem !== null) add('problem', 'addon', facts.addonProblem);
  if (facts.probe !== null) devices(facts, facts.probe, add);
  memory(facts, add);
  if (facts.ptraceScope !== null && facts.ptraceScope >= 2 && !facts.mayTrace) {
    add(
      'remark',
      'ptrace',
      `kernel.yama.ptrace_scope is ${facts.ptraceScope}: programs under millrace verbs cannot reach each other's own buffers. Members are not affected.`,
      'sysctl kernel.yama.ptrace_scope=1, if such programs are to run.',
    );
  }
  for (const { layout, folder } of facts.others) {
    add(
      'remark',
      'layout',
      `Processes in ${folder} use another version of this library (layout ${layout}); they are not seen from here.`,
      'Use one version in all programs that are to see each other.',
    );
  }
  return found.sort((a, b) => Number(a.level === 'remark') - Number(b.level === 'remark'));
}

type Add = (level: Finding['level'], about: Finding['about'], text: string, remedy?: string) => void;

function devices({ device, mayLock }: Facts, probe: NativeProbe, add: Add): void {
  const named = device === 'soft' ? 'soft0' : device;
  const wanted = probe.devices.find(({ name }) => name === named);
  if (device !== 'auto' && wanted === undefined) {
    const all = probe.devices.map(({ name }) => name).join(', ');
    add(
      'problem',
      'device',
      `MILLRACE_DEVICE is ${JSON.stringify(device)}, and there is no such device. There is: ${all}.`,
      probe.noSystemDevice || 'Name one that there is.',
    );
  }
  for (const one of probe.devices) {
    if (one.missing === '') continue;
    // The software device is what is left when nothing else is.
    const needed = one === wanted || (device === 'auto' && one.provider === 'soft');
    add(needed ? 'problem' : 'remark', 'device', `No lanes can be made on ${one.name}: ${one.missing}.`);
  }
  if (probe.libraryProblem !== '')
    add('remark', 'device', `Adapters cannot be used: ${probe.libraryProblem}.`);
  else if (probe.noSystemDevice !== '')
    add('remark', 'device', `There is no adapter: ${probe.noSystemDevice}.`);
  const adapters = probe.devices.some((one) => one.provider === 'system' && one.missing === '');
  if (adapters && !mayLock && probe.memlock < REGISTERED) {
    add(
      wanted?.provider === 'system' ? 'problem' : 'remark',
      'memlock',
      `RLIMIT_MEMLOCK is ${toSize(probe.memlock)}; a member registers about ${toSize(REGISTERED)} with an adapter.`,
      'ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, or docker run --ulimit memlock=-1.',
    );
  }
}

function memory({ memory: { folder, free, inMemory, problem } }: Facts, add: Add): void {
  if (problem !== null || free === null) {
    add(
      'problem',
      'memory',
      `${folder} cannot be used: ${problem ?? 'its size cannot be told'}.`,
      'Set MILLRACE_SHM_DIR to a folder on a tmpfs that this user may write to.',
    );
    return;
  }
  if (free < LITTLE_MEMORY) {
    add(
      'problem',
      'memory',
      `${folder} has ${toSize(free)} free; a member takes about 3 MiB to start with.`,
      'Run millrace clean --all, or make it larger: mount -o remount,size=1g /dev/shm, docker run --shm-size=1g.',
    );
  }
  if (!inMemory) {
    add(
      'remark',
      'memory',
      `${folder} is on a disk, so what travels is written to it.`,
      'Set MILLRACE_SHM_DIR to a folder on a tmpfs, such as /dev/shm.',
    );
  }
}
