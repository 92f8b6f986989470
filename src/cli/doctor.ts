import { accessSync, constants, readFileSync, statfsSync, statSync } from 'node:fs';
import { otherFabrics, otherLayouts } from '../cluster/layouts.js';
import { baseFolder, DEFAULT_DOMAIN } from '../cluster/paths.js';
import type { NativeDevice, NativePort, NativeProbe } from '../native/devices.js';
import { loadNative } from '../native/load.js';
import type { Context } from './context.js';
import { diagnose, type Facts, type Finding } from './diagnose.js';
import { EXIT } from './exit.js';
import { toSize } from './render.js';

/** Options of `millrace doctor`. */
export interface DoctorOptions {
  readonly json?: boolean;
}

/** File systems that are memory: tmpfs, ramfs, hugetlbfs. */
const IN_MEMORY = new Set([0x01021994, 0x858458f6, 0x958458f6]);
const CAP_IPC_LOCK = 14n;
const CAP_SYS_PTRACE = 19n;

/** `millrace doctor`: devices, limits and memory of this machine, and what to change. Joins no domain. */
export async function doctor(options: DoctorOptions, { io }: Context): Promise<number> {
  const facts = gather(io.streams.env);
  const findings = diagnose(facts);
  if (options.json) {
    // JSON has no Infinity: a limit that is none is null.
    await io.line(
      JSON.stringify({ ...facts, findings }, (_key, value) => (value === Infinity ? null : value)),
    );
  } else {
    await io.write(describe(facts, findings, io.colors));
  }
  return findings.some(({ level }) => level === 'problem') ? EXIT.FAILED : EXIT.OK;
}

function gather(env: NodeJS.ProcessEnv): Facts {
  let probe: NativeProbe | null = null;
  let addonProblem: string | null = null;
  let others: Facts['others'] = [];
  const base = baseFolder(env);
  try {
    const native = loadNative();
    probe = native.probe();
    const domain = env.MILLRACE_DOMAIN || DEFAULT_DOMAIN;
    others = [...otherFabrics(native, base), ...otherLayouts(native, base, domain)];
  } catch (error) {
    addonProblem = (error as Error).message;
  }
  const capabilities = readCapabilities();
  return {
    probe,
    addonProblem,
    memory: lookAtMemory(base),
    others,
    mayLock: (capabilities >> CAP_IPC_LOCK) % 2n === 1n,
    mayTrace: (capabilities >> CAP_SYS_PTRACE) % 2n === 1n,
    ptraceScope: readPtraceScope(),
    device: env.MILLRACE_DEVICE || 'soft',
  };
}

function lookAtMemory(folder: string): Facts['memory'] {
  try {
    const { type, bsize, blocks, bavail } = statfsSync(folder);
    const seen = { folder, bytes: bsize * blocks, free: bsize * bavail, inMemory: IN_MEMORY.has(type) };
    const problem = statSync(folder).isDirectory() ? null : 'it is not a folder';
    if (problem === null) accessSync(folder, constants.W_OK | constants.X_OK);
    return { ...seen, problem };
  } catch (error) {
    return { folder, bytes: null, free: null, inMemory: false, problem: (error as Error).message };
  }
}

/** The effective capabilities of this process, as bits; none where they cannot be read. */
function readCapabilities(): bigint {
  try {
    const bits = /^CapEff:\s*([0-9a-f]+)$/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1];
    return bits === undefined ? 0n : BigInt(`0x${bits}`);
  } catch {
    return 0n;
  }
}

function readPtraceScope(): number | null {
  try {
    return Number(readFileSync('/proc/sys/kernel/yama/ptrace_scope', 'utf8'));
  } catch {
    return null;
  }
}

type Colors = Context['io']['colors'];

function describe(facts: Facts, findings: readonly Finding[], colors: Colors): string {
  const lines: string[] = [];
  for (const device of facts.probe?.devices ?? []) lines.push(...deviceLines(device, facts, colors), '');
  const { memory, probe } = facts;
  const rows: [string, string][] = [
    ['shared memory', memory.bytes === null ? memory.folder : memoryText(memory.folder, memory)],
    ['libibverbs', probe === null ? '?' : probe.library || 'none'],
    [
      'memlock',
      probe === null ? '?' : `${sizeText(probe.memlock)}${facts.mayLock ? ' (may exceed it)' : ''}`,
    ],
    ['ptrace scope', facts.ptraceScope === null ? 'no Yama' : String(facts.ptraceScope)],
  ];
  lines.push(...rows.map(([name, text]) => `${name.padEnd(14)}${text}`));
  if (findings.length > 0) lines.push('');
  for (const { level, text, remedy } of findings) {
    lines.push(`${level === 'problem' ? colors.red('problem') : colors.yellow('remark ')}  ${text}`);
    if (remedy !== '') lines.push(`         ${colors.dim(remedy)}`);
  }
  const problems = findings.filter(({ level }) => level === 'problem').length;
  lines.push(
    '',
    problems === 0 ? colors.green('Members can join.') : colors.red(`${problems} to be solved.`),
  );
  return `${lines.join('\n')}\n`;
}

const sizeText = (bytes: number) => (Number.isFinite(bytes) ? toSize(bytes) : 'unlimited');
const memoryText = (folder: string, { bytes, free }: { bytes: number | null; free: number | null }) =>
  `${folder}, ${toSize(free ?? 0)} of ${toSize(bytes ?? 0)} free`;

function deviceLines(device: NativeDevice, facts: Facts, colors: Colors): string[] {
  const { name, provider, missing, can, limits, lanes, ports } = device;
  const used = name === facts.device || (facts.device === 'soft' && name === 'soft0');
  const kind = provider === 'soft' ? 'software device' : 'adapter';
  const state = missing === '' ? colors.green('usable') : colors.yellow(missing);
  const lines = [`${colors.bold(name)}  ${kind}${used ? ', the one in use' : ''}: ${state}`];
  if (!device.opened) return lines;
  const abilities: [boolean, string][] = [
    [can.xrc, 'XRC'],
    [can.rc, 'RC'],
    [can.basicSrq, 'SRQ'],
    [can.udMulticast, 'UD multicast'],
    [can.rawPacket, 'raw packets'],
    [can.flowSteering, 'flow steering'],
    [can.memoryWindows, 'memory windows'],
    [can.atomics, 'atomics'],
  ];
  const row = (title: string, text: string) => lines.push(`  ${title.padEnd(12)}${text}`);
  row(
    'can',
    abilities
      .filter(([has]) => has)
      .map(([, text]) => text)
      .join(', '),
  );
  row('lanes', lanes === 'xrc' ? 'XRC, one to a host' : lanes === 'rc' ? 'RC, one to a member' : 'none');
  row(
    'limits',
    `${limits.qp} QPs of ${limits.qpWr} WRs and ${limits.sge} SGEs, ${limits.srq} SRQs of ${limits.srqWr}, ` +
      `${limits.cq} CQs of ${limits.cqe}, ${limits.mr} MRs`,
  );
  for (const port of ports) row(`port ${port.number}`, portText(port));
  return lines;
}

function portText({ state, link, lid, mtu, gid, gids }: NativePort): string {
  const chosen = gids.find(({ index }) => index === gid);
  const address = link === 'infiniband' ? `LID ${lid}` : '';
  const where = chosen === undefined ? 'no GID' : `GID ${chosen.index} ${chosen.gid} (${chosen.kind})`;
  const others = gids.length > 1 ? `, one of ${gids.length}` : '';
  return [state, link === 'infiniband' ? 'InfiniBand' : 'Ethernet', `MTU ${mtu}`, address, where + others]
    .filter((text) => text !== '')
    .join(', ');
}
