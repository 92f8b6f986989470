import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { firstValueFrom } from 'rxjs';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Steering, type SteeringEvent } from '../../src/steering/steering.js';
import { step, type WatchEffect, type WatchEvent, watching } from '../../src/steering/watch-state.js';
import { FakeFlowTable } from '../support/fake-flow-table.js';

const TOUCHED = { type: 'touched' } as const;
const SETTLED = { type: 'settled' } as const;
const read = (text: string): WatchEvent => ({ type: 'read', text });
const applied = (text: string, ok: boolean): WatchEvent => ({ type: 'applied', text, ok });

const run = (...events: WatchEvent[]) => {
  let state = watching('old');
  const effects: (WatchEffect | undefined)[] = [];
  for (const event of events) {
    const [next, effect] = step(state, event);
    state = next;
    effects.push(effect);
  }
  return {
    state,
    told: effects.map((effect) => (effect?.type === 'apply' ? `apply ${effect.text}` : effect?.type)),
  };
};

describe('watching as a state machine', () => {
  test('an edit is read when it is quiet, and taken', () => {
    const { state, told } = run(TOUCHED, TOUCHED, SETTLED, read('new'), applied('new', true));
    expect(told).toEqual(['wait', 'wait', 'read', 'apply new', undefined]);
    expect(state).toMatchObject({ phase: 'idle', text: 'new', wrong: undefined });
  });

  test('the same text is not taken again', () => {
    expect(run(TOUCHED, SETTLED, read('old')).told).toEqual(['wait', 'read', undefined]);
  });

  test('touched while it is read: what was read may be half of it', () => {
    expect(run(TOUCHED, SETTLED, TOUCHED, read('ne'), SETTLED, read('new')).told).toEqual([
      'wait',
      'read',
      undefined,
      'wait',
      'read',
      'apply new',
    ]);
  });

  test('after a bad edit the old text is taken again, so that all know that it is good', () => {
    const bad = [TOUCHED, SETTLED, read('bad'), applied('bad', false)];
    expect(run(...bad).state).toMatchObject({ text: 'old', wrong: 'bad' });
    expect(run(...bad, TOUCHED, SETTLED, read('old')).told.at(-1)).toBe('apply old');
  });

  test('what is wrong is told once', () => {
    const again = [TOUCHED, SETTLED, read('bad')];
    expect(run(...again, applied('bad', false), ...again).told.at(-1)).toBeUndefined();
  });

  test('a file that is away is told, and taken when it is back', () => {
    const away: WatchEvent = { type: 'unreadable', why: 'ENOENT', error: new Error('ENOENT') };
    expect(run(TOUCHED, SETTLED, away, TOUCHED, SETTLED, read('old')).told).toEqual([
      'wait',
      'read',
      'report',
      'wait',
      'read',
      'apply old',
    ]);
  });

  test('a file that is touched without end is read nevertheless', () => {
    const { told } = run(...Array.from({ length: 100 }, () => TOUCHED));
    expect(told.filter((one) => one === 'wait')).toHaveLength(20);
  });

  test('random events: there is never more than one read, and the last text is what counts in the end', () => {
    const events = fc.array(fc.constantFrom('write', 'settle', 'read'), { maxLength: 40 });
    fc.assert(
      fc.property(events, (list) => {
        let state = watching('0');
        let text = '0';
        let reads = 0;
        let timer = false;
        const feed = (event: WatchEvent) => {
          const [next, effect] = step(state, event);
          state = next;
          if (effect?.type === 'wait') timer = true;
          if (effect?.type === 'read') expect(++reads).toBe(1);
          if (effect?.type === 'apply') feed(applied(effect.text, true));
        };
        const settle = () => {
          if (!timer) return;
          timer = false;
          feed(SETTLED);
        };
        const finish = () => {
          if (reads === 0) return;
          reads = 0;
          feed(read(text));
        };
        for (const [i, one] of list.entries()) {
          if (one === 'write') {
            text = String(i + 1);
            feed(TOUCHED);
          } else if (one === 'settle') settle();
          else finish();
        }
        for (let i = 0; i < 3; i++) {
          settle();
          finish();
        }
        expect(state).toMatchObject({ phase: 'idle', text });
      }),
    );
  });
});

describe('a real file', () => {
  let folder: string;
  let file: string;
  let table: FakeFlowTable;
  let steering: Steering;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'steering-'));
    file = join(folder, 'rules.yaml');
    table = new FakeFlowTable();
    steering = new Steering(table);
    writeFileSync(file, text(1));
  });
  afterEach(() => {
    steering.close();
    rmSync(folder, { recursive: true });
  });
  const text = (...numbers: number[]) =>
    `rules:\n${numbers.map((n) => `  - { name: r${n}, match: { dst: 239.1.1.${n} }, to: c }\n`).join('')}`;
  /** As editors save: another file takes the name. */
  const put = (path: string, content: string) => {
    writeFileSync(join(folder, 'edited.tmp'), content);
    renameSync(join(folder, 'edited.tmp'), path);
  };
  /** The next event that a change leads to. */
  const eventOf = async (body: () => void): Promise<SteeringEvent> => {
    const next = firstValueFrom(steering.events$);
    body();
    return next;
  };

  test('an edit in place, a replacement, a bad edit, one that contradicts, and away for a while', async () => {
    await steering.watch(file);
    expect(table.names).toEqual(['r1']);
    expect(await eventOf(() => writeFileSync(file, text(1, 2)))).toMatchObject({
      type: 'loaded',
      file,
      rules: 2,
    });
    expect(table.names).toEqual(['r1', 'r2']);

    expect(await eventOf(() => put(file, text(2, 3)))).toMatchObject({ type: 'loaded', rules: 2 });
    expect(table.names).toEqual(['r2', 'r3']);

    const bad = await eventOf(() => put(file, text(2, 999)));
    expect(bad).toMatchObject({ type: 'rejected', file, error: { code: 'ERR_STEERING_RULE' } });
    expect((bad as { error: Error }).error.message).toContain(`${file}:3:`);
    expect(table.names).toEqual(['r2', 'r3']);

    table.failure = { after: 0, code: 'ENOMEM' };
    expect(await eventOf(() => put(file, text(2, 3, 4)))).toMatchObject({
      type: 'rejected',
      error: { code: 'ERR_STEERING_REFUSED', errnoName: 'ENOMEM' },
    });
    expect(await eventOf(() => unlinkSync(file))).toMatchObject({
      type: 'rejected',
      error: { code: 'ERR_STEERING_FILE', errnoName: 'ENOENT' },
    });
    expect(table.names).toEqual(['r2', 'r3']);
    expect(await eventOf(() => put(file, text(5)))).toMatchObject({ type: 'loaded', rules: 1 });
    expect(table.names).toEqual(['r5']);
  });

  test('a link into another folder that is replaced (a Kubernetes volume)', async () => {
    for (const n of [1, 2]) {
      mkdirSync(join(folder, `v${n}`));
      writeFileSync(join(folder, `v${n}`, 'rules.yaml'), text(n));
    }
    unlinkSync(file);
    symlinkSync('v1', join(folder, '..data'));
    symlinkSync('..data/rules.yaml', file);
    await steering.watch(file);
    symlinkSync('v2', join(folder, '..next'));
    expect(await eventOf(() => renameSync(join(folder, '..next'), join(folder, '..data')))).toMatchObject({
      type: 'loaded',
    });
    expect(table.names).toEqual(['r2']);
  });

  test('what a link leads to is edited in another folder, and the link comes later', async () => {
    const other = join(folder, 'other');
    mkdirSync(other);
    writeFileSync(join(other, 'rules.yaml'), text(2));
    await steering.watch(file);
    unlinkSync(file);
    expect(await eventOf(() => symlinkSync(join(other, 'rules.yaml'), file))).toMatchObject({
      type: 'loaded',
    });
    expect(table.names).toEqual(['r2']);
    const edit = () => writeFileSync(join(other, 'rules.yaml'), text(3));
    expect(await eventOf(edit)).toMatchObject({ type: 'loaded' });
    expect(table.names).toEqual(['r3']);
  });

  test('a rule without a name that is added beside those of the file', async () => {
    writeFileSync(file, JSON.stringify([{ match: { dst: '239.1.1.1' }, to: 'c' }]));
    await steering.watch(file);
    steering.add({ match: { dst: '239.1.1.2' }, to: 'c' });
    expect(table.names).toEqual(['#1', '#2']);
  });

  test('it must be good at the start', async () => {
    await expect(steering.watch(join(folder, 'none.yaml'))).rejects.toMatchObject({
      code: 'ERR_STEERING_FILE',
      message: expect.stringContaining('it does not exist (ENOENT)'),
    });
    await expect(steering.watch(folder)).rejects.toMatchObject({
      code: 'ERR_STEERING_FILE',
      errnoName: 'EISDIR',
    });
    execFileSync('mkfifo', [join(folder, 'fifo')]);
    await expect(steering.watch(join(folder, 'fifo'))).rejects.toMatchObject({
      code: 'ERR_STEERING_FILE',
      message: expect.stringContaining('no ordinary file'),
    });
    writeFileSync(file, 'rules: [{}]');
    await expect(steering.watch(file)).rejects.toMatchObject({
      code: 'ERR_STEERING_RULE',
      message: expect.stringContaining(`${file}:1:9`),
    });
    expect(table.log).toEqual([]);
  });

  test('when it is watched no longer, the rules stay', async () => {
    const first = await steering.watch(file);
    const second = join(folder, 'second.yaml');
    writeFileSync(second, text(2));
    await steering.watch(second);
    first.close();
    expect(table.names).toEqual(['r2']);
    // Nobody looks at the first one any more: the event is that of the second.
    put(file, text(9));
    expect(await eventOf(() => put(second, text(3)))).toMatchObject({ file: second });
    expect(table.names).toEqual(['r3']);
  });
});
