import { describe, expect, test } from 'vitest';
import { diagnose, type Facts } from '../../src/cli/diagnose.js';
import type { NativeDevice } from '../../src/native/devices.js';

const device = (name: string, more: Partial<NativeDevice> = {}): NativeDevice => ({
  name,
  provider: name.startsWith('soft') ? 'soft' : 'system',
  missing: '',
  opened: true,
  guid: '0000000000000001',
  firmware: '1.0',
  vendor: 1,
  part: 1,
  lanes: 'xrc',
  can: {
    rc: true,
    xrc: true,
    basicSrq: true,
    udMulticast: true,
    rawPacket: false,
    flowSteering: false,
    memoryWindows: false,
    atomics: false,
  },
  limits: {
    qp: 1,
    qpWr: 1,
    sge: 1,
    cq: 1,
    cqe: 1,
    mr: 1,
    mrBytes: Infinity,
    pd: 1,
    srq: 1,
    srqWr: 1,
    multicastGroups: 1,
    rdAtomic: 1,
  },
  ports: [],
  ...more,
});

/** A machine with an adapter and nothing wrong, and the changes of a test. */
const machine = (more: Partial<Facts> = {}, probe: Partial<NonNullable<Facts['probe']>> = {}): Facts => ({
  probe: {
    library: '/lib/libibverbs.so.1',
    libraryProblem: '',
    noSystemDevice: '',
    memlock: Infinity,
    devices: [device('soft0'), device('mlx5_0')],
    ...probe,
  },
  addonProblem: null,
  memory: { folder: '/dev/shm', bytes: 1 << 30, free: 1 << 30, inMemory: true, problem: null },
  others: [],
  mayLock: false,
  ptraceScope: 1,
  mayTrace: false,
  device: 'soft',
  ...more,
});

describe('millrace doctor says', () => {
  test('nothing of a machine with nothing wrong', () => {
    expect(diagnose(machine())).toEqual([]);
    expect(diagnose(machine({ device: 'mlx5_0' }))).toEqual([]);
    expect(diagnose(machine({ device: 'auto' }))).toEqual([]);
  });

  test('that the addon does not load, and the rest all the same', () => {
    const found = diagnose(machine({ probe: null, addonProblem: 'musl', ptraceScope: 2 }));
    expect(found.map(({ level, about }) => [level, about])).toEqual([
      ['problem', 'addon'],
      ['remark', 'ptrace'],
    ]);
  });

  test('that another version is in use beside this one', () => {
    const [found] = diagnose(machine({ others: [{ layout: 2, folder: '/dev/shm/millrace.2.0/test' }] }));
    expect(found).toMatchObject({ level: 'remark', about: 'layout' });
    expect(found!.text).toMatch(/millrace\.2\.0\/test .*layout 2/);
  });

  test('that the device of MILLRACE_DEVICE is not there, and what is', () => {
    const [found] = diagnose(
      machine({ device: 'mlx5_1' }, { noSystemDevice: 'the kernel knows none', devices: [device('soft0')] }),
    );
    expect(found).toMatchObject({ level: 'problem', about: 'device', remedy: 'the kernel knows none' });
    expect(found!.text).toContain('"mlx5_1"');
    expect(found!.text).toContain('soft0');
  });

  test('that an adapter cannot be used: a problem only for who wants it', () => {
    const down = { devices: [device('soft0'), device('mlx5_0', { missing: 'its port 1 is down' })] };
    expect(diagnose(machine({}, down))).toMatchObject([{ level: 'remark', about: 'device' }]);
    expect(diagnose(machine({ device: 'auto' }, down))).toMatchObject([{ level: 'remark' }]);
    expect(diagnose(machine({ device: 'mlx5_0' }, down))).toMatchObject([
      { level: 'problem', text: 'No lanes can be made on mlx5_0: its port 1 is down.' },
    ]);
  });

  test('that the software device does not work: a problem unless another one is wanted', () => {
    const broken = { devices: [device('soft0', { missing: 'no room', opened: false }), device('mlx5_0')] };
    expect(diagnose(machine({}, broken))).toMatchObject([{ level: 'problem' }]);
    expect(diagnose(machine({ device: 'auto' }, broken))).toMatchObject([{ level: 'problem' }]);
    expect(diagnose(machine({ device: 'mlx5_0' }, broken))).toMatchObject([{ level: 'remark' }]);
  });

  test('why there are no adapters, once', () => {
    const none = { devices: [device('soft0')], noSystemDevice: 'none known' };
    expect(diagnose(machine({}, none))).toMatchObject([
      { level: 'remark', text: 'There is no adapter: none known.' },
    ]);
    const unloaded = { ...none, library: '', libraryProblem: 'not found', noSystemDevice: 'not found' };
    expect(diagnose(machine({}, unloaded))).toMatchObject([
      { level: 'remark', text: 'Adapters cannot be used: not found.' },
    ]);
  });

  test('that the limit of locked memory is low, where it counts', () => {
    const low = { memlock: 64 << 10 };
    expect(diagnose(machine({}, low))).toMatchObject([{ level: 'remark', about: 'memlock' }]);
    expect(diagnose(machine({ device: 'mlx5_0' }, low))).toMatchObject([
      { level: 'problem', about: 'memlock' },
    ]);
    expect(diagnose(machine({ device: 'mlx5_0', mayLock: true }, low))).toEqual([]);
    expect(diagnose(machine({}, { ...low, devices: [device('soft0')] }))).toEqual([]);
  });

  test.each([
    [{ free: 1 << 20 }, 'problem', /1\.0 MiB free/],
    [{ free: null, bytes: null, problem: 'ENOENT' }, 'problem', /cannot be used: ENOENT/],
    [{ inMemory: false }, 'remark', /on a disk/],
  ])('what is wrong with the folder for shared memory: %o', (change, level, text) => {
    const { memory } = machine();
    const [found] = diagnose(machine({ memory: { ...memory, ...change } }));
    expect(found).toMatchObject({ level, about: 'memory', text: expect.stringMatching(text) });
    expect(found!.remedy).not.toBe('');
  });

  test('that programs under millrace verbs need a lower ptrace scope', () => {
    expect(diagnose(machine({ ptraceScope: 2 }))).toMatchObject([{ level: 'remark', about: 'ptrace' }]);
    expect(diagnose(machine({ ptraceScope: 2, mayTrace: true }))).toEqual([]);
    expect(diagnose(machine({ ptraceScope: null }))).toEqual([]);
  });
});
