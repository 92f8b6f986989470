/**
 * SIGKILL at any moment of joining and of leaving. The moments are what the victim does in its folders: it is killed at the
 * n-th name that it makes or removes there, for n over all of them. Others are not disturbed, and whoever joins or leaves next
 * removes what was left.
 */
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Place } from '../support/cli-process.js';
import { Dice, seeds, Victim } from '../support/kill-member.js';
import { queuePairs } from '../support/queue-pairs.js';

let place: Place;
beforeEach(() => {
  place = new Place();
});
afterEach(async () => {
  await place.dispose();
});

/** Counts names that come and go below a folder, also in folders that are made meanwhile. */
class Watch {
  #count = 0;
  #at: { n: number; run: () => void } | null = null;
  readonly #watchers = new Map<string, fs.FSWatcher>();

  constructor(folder: string) {
    this.#add(folder);
  }

  get count(): number {
    return this.#count;
  }

  /** Runs this at the n-th name from now on. */
  at(n: number, run: () => void): void {
    this.#count = 0;
    this.#at = { n, run };
  }

  end(): void {
    for (const watcher of this.#watchers.values()) watcher.close();
    this.#watchers.clear();
  }

  #add(folder: string): void {
    if (this.#watchers.has(folder)) return;
    let watcher: fs.FSWatcher;
    try {
      watcher = fs.watch(folder, (event, name) => {
        if (event !== 'rename' || name === null) return;
        if (++this.#count === this.#at?.n) this.#at.run();
        this.#look(join(folder, name));
      });
    } catch {
      return; // gone already
    }
    watcher.on('error', () => {});
    this.#watchers.set(folder, watcher);
    for (const name of fs.readdirSync(folder)) this.#look(join(folder, name));
  }

  #look(path: string): void {
    if (fs.statSync(path, { throwIfNoEntry: false })?.isDirectory()) this.#add(path);
    else this.#watchers.delete(path);
  }
}

const quiet = { publish: false };
/** So many at least must have been killed before they were through: this process may hear of a name too late. */
const MIDST = 4;

describe.each([
  ['alone', false],
  ['beside another member', true],
])('%s', (_, beside) => {
  test.each(seeds(1))('joining (seed %i)', async (seed) => {
    const dice = new Dice(seed);
    const other = beside ? await Victim.start(place, 'other', quiet) : null;
    const watch = new Watch(place.folder);
    watch.at(Infinity, () => {});
    const first = await Victim.start(place, 'first', quiet);
    const names = watch.count;
    expect(names).toBeGreaterThan(5);
    await first.leave();
    for (let round = 0, midst = 0; midst < MIDST || round < 12; round++) {
      const n = 1 + dice.below(names);
      const victim = new Victim(place, `v${round}`, quiet);
      watch.at(n, () => victim.running.kill('SIGKILL'));
      // Killed at last when it has joined, if the names came in another number this time.
      await Promise.race([
        victim.running.ended,
        victim.until('up', () => victim.of('up').length > 0).catch(() => {}),
      ]);
      victim.running.kill('SIGKILL');
      expect(await victim.running.finish()).toEqual({ code: null, signal: 'SIGKILL' });
      if (victim.of('up').length === 0) midst++;
      if (other !== null) expect(other.running.end).toBeUndefined();
    }
    watch.end();
    const last = await Victim.start(place, 'last', quiet);
    if (other !== null) {
      await last.told('peer-joined', 'other');
      await other.told('peer-joined', 'last');
      expect(await other.resources()).toMatchObject({ peers: 1 });
      await other.leave();
    }
    expect(await last.ask('resources', 'resources')).toMatchObject({ qps: queuePairs(0) });
    await last.leave();
    expect(place.content).toEqual([]);
  });

  test.each(seeds(1))('leaving (seed %i)', async (seed) => {
    const dice = new Dice(seed);
    const other = beside ? await Victim.start(place, 'other', quiet) : null;
    const watch = new Watch(place.folder);
    const first = await Victim.start(place, 'first', quiet);
    watch.at(Infinity, () => {});
    await first.leave();
    const names = watch.count;
    expect(names).toBeGreaterThan(3);
    for (let round = 0, midst = 0; midst < MIDST || round < 8; round++) {
      const victim = await Victim.start(place, `v${round}`, quiet);
      const n = 1 + dice.below(names);
      watch.at(n, () => victim.running.kill('SIGKILL'));
      victim.tell('leave');
      const { code, signal } = await victim.running.finish();
      if (victim.of('gone').length === 0) {
        expect(signal).toBe('SIGKILL');
        midst++;
      } else expect([0, null]).toContain(code);
    }
    watch.end();
    const last = await Victim.start(place, 'last', quiet);
    if (other !== null) {
      await other.told('peer-joined', 'last');
      expect(await other.resources()).toMatchObject({ peers: 1 });
      await other.leave();
    }
    await last.leave();
    expect(place.content).toEqual([]);
  });
});
