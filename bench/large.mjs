/**
 * Large messages on one host, handed over: of a message its sender writes the first and the last byte, and who gets it reads them.
 * A round trip to one subscriber comes back as it went; of several subscribers, and for the rate, each answers with 64 bytes.
 */
import { readFileSync, statfsSync } from 'node:fs';
import { digits, gigabytes, mebibytes, median, micros, sized } from './figures.mjs';
import { firstLine } from './machine.mjs';
import { newFolder, scene } from './processes.mjs';

const KIB = 1024;
const MIB = KIB * KIB;
const GIB = KIB * MIB;
const SMALL = 64;
const SIZES = [64 * KIB, MIB, 64 * MIB, GIB];
const SUBSCRIBERS = [1, 4];
/** Sizes whose times are compared are measured in so many turns: the machine may change its speed meanwhile. */
const ROUNDS = 20;
const FRAMES = 10_000;
const FRAME_ROW = `${FRAMES} frames of 1 MiB, least of 3`;

export const name = 'large';
export const title = 'Large messages: round trip and rate to 1 and 4 subscribers, of loans and of copies.';
export const peers = {
  loan: 'millrace,\nloan',
  copy: 'millrace,\ncopy',
  remote: 'millrace, loan\nto another port',
  zeromq: 'zeromq 6,\npush',
  socket: 'Unix socket',
  raised: 'Unix socket,\nmalloc raised',
  threads: 'worker_threads\ntransfer',
  ucx: 'UCX, by copy',
};
export const cases = ['roundtrip', 'rate', 'memory'];
const toSubscribers = (count) => (count === 1 ? '1 subscriber' : `${count} subscribers`);
export const tables = {
  ...Object.fromEntries(
    SUBSCRIBERS.flatMap((count) => [
      [
        `trip${count}`,
        { title: `round trip p50,\n${toSubscribers(count)}`, ours: 'loan', show: micros, less: true },
      ],
      [`rate${count}`, { title: `rate to each of\n${toSubscribers(count)}`, ours: 'loan', show: gigabytes }],
    ]),
  ),
  memory: { title: 'resident memory grows by', ours: 'loan', show: mebibytes, less: true },
};

/** glibc gives large blocks back to the kernel, and takes them anew, page fault by page fault, unless told otherwise; 32 MiB is
 * the most that it takes for the first of these. */
const RAISED = { MALLOC_MMAP_THRESHOLD_: String(32 * MIB), MALLOC_TRIM_THRESHOLD_: String(8 * GIB) };

/** What the processes of a peer have in their environment besides. */
const ENVIRONMENT = { raised: RAISED, remote: { MILLRACE_SOFT_DEVICES: '2' } };

/** So many messages of a size may be under way. */
const windowOf = (bytes) => Math.max(2, Math.min(64, (16 * MIB) / bytes));

/** Why messages of so many bytes don't fit here, or null. `blocks`: how many each subscriber has of its own. */
function noRoom(bytes, subscribers, blocks) {
  // A block in use and a spare one for each side, and what else is under way or copied.
  const needed = bytes * (5 + blocks * subscribers);
  const available = /^MemAvailable: +(\d+) kB/m.exec(readFileSync('/proc/meminfo', 'utf8'));
  const { bavail, bsize } = statfsSync('/dev/shm');
  for (const [place, free] of [
    ['memory', Number(available?.[1]) * KIB],
    ['/dev/shm', bavail * bsize],
  ]) {
    if (!(free >= needed)) return `needs ${sized(needed)} of ${place}, ${mebibytes(free)} are free`;
  }
  return null;
}

/** One publisher and its subscribers, through all sizes. */
const session = (peer, subscribers, what, context) => () =>
  scene(peer, 600_000, async (start) => {
    const seconds = context.quick ? 0.2 : 1;
    const budget = context.quick ? 1.5 : 30;
    // What travels is a descriptor.
    const flat = peer === 'loan' || (peer === 'threads' && subscribers === 1);
    const module = peer === 'raised' ? 'socket' : peer;
    const options = { env: ENVIRONMENT[peer] ?? {}, execArgv: ['--expose-gc'] };
    const spec = { peer: module, subscribers, echo: what === 'roundtrip' && subscribers === 1 };
    const leaves = [];
    // Threads are the publisher's own.
    for (let index = 0; index < (peer === 'threads' ? 0 : subscribers); index++) {
      leaves.push(start('large-child.mjs', { ...spec, role: 'leaf', index }, options));
    }
    await Promise.all(leaves.map((leaf) => leaf.first('ready')));
    const hub = start('large-child.mjs', { ...spec, role: 'hub' }, options);
    await hub.first('ready');
    const ask = (child, question) => {
      const answer = child.first('answer');
      child.child.send(question);
      return answer;
    };
    const everybody = [hub, ...leaves];
    const found = [];
    if (what === 'memory') {
      const frames = (most) => ask(hub, { bytes: MIB, window: 4, most });
      const resident = async () => {
        const all = await Promise.all(everybody.map((child) => ask(child, 'resident')));
        return all.reduce((sum, bytes) => sum + bytes, 0);
      };
      // As many before: both processes grow to the size that they work in.
      await frames(FRAMES);
      // What leaks grows each time; the engine's own heap does not.
      let least = Infinity;
      for (let round = 0; round < 3; round++) {
        const before = await resident();
        await frames(FRAMES);
        least = Math.min(least, (await resident()) - before);
      }
      found.push(['memory', FRAME_ROW, least]);
    } else {
      const table = `${what === 'rate' ? 'rate' : 'trip'}${subscribers}`;
      // Code is compiled after some ten thousand messages, on threads that take the CPU from who polls; those would else be
      // messages of the first size.
      for (const bytes of [SMALL, SIZES[0]])
        await ask(hub, { bytes, window: what === 'rate' ? 16 : 1, seconds: 2 * seconds, most: 200_000 });
      const sizes = what === 'rate' ? SIZES : [SMALL, ...SIZES];
      const rounds = flat && what === 'roundtrip' ? ROUNDS : 1;
      const measured = new Map(sizes.map((bytes) => [bytes, []]));
      for (let round = 0; round < rounds; round++) {
        let last = null;
        for (const bytes of sizes) {
          let why = bytes < GIB ? null : noRoom(bytes, subscribers, peer === 'remote' ? 4 : 1);
          // For some messages, if the time grows with the size from the last one on, and page faults come on top.
          const expected = bytes < 64 * MIB ? 0 : (last.micros / 1e6) * (bytes / last.bytes) * 10;
          if (!flat && expected > budget) {
            why ??= context.quick ? 'takes too long for --quick' : `would take ${expected.toFixed(0)} s`;
          }
          if (why !== null) {
            found.push([table, sized(bytes), why]);
            continue;
          }
          const window = what === 'rate' ? windowOf(bytes) : 1;
          // A block that is made ahead takes part of a CPU meanwhile, and some seconds for the largest.
          const first = flat && bytes === GIB ? 5 * seconds : seconds / 4;
          const warm = round === 0 ? first : 0;
          const figures = await ask(hub, { bytes, window, seconds: seconds / rounds, warm });
          last = { bytes, micros: figures.micros };
          measured.get(bytes).push(what === 'rate' ? figures.rate : figures.micros);
        }
      }
      for (const [bytes, list] of measured)
        if (list.length > 0) found.push([table, sized(bytes), median(list)]);
    }
    for (const { child } of everybody) child.send('end');
    await Promise.all(everybody.map(({ ended }) => ended));
    return found;
  });

/** What UCX copies through shared memory, message after message. */
async function ucx() {
  const { runUcx } = await import('./ucx.mjs');
  const shm = newFolder();
  const row = await runUcx('tag_bw', 'posix', MIB, 4000, shm);
  return [['rate1', sized(MIB), row.bandwidth * MIB]];
}

export function rows(context) {
  const chosen = context.pick(Object.keys(peers));
  if (chosen.includes('ucx') && firstLine('ucx_info', ['-v']) === null)
    context.missing.ucx = 'apt-get install ucx-utils';
  const processes = chosen.filter((peer) => peer !== 'ucx');
  return context.pick(cases).flatMap((what) => {
    if (what === 'memory') {
      const ours = processes.filter((peer) => peer === 'loan' || peer === 'copy');
      return ours.map((peer) => ({
        group: 'resident memory',
        peer,
        once: true,
        measure: session(peer, 1, what, context),
      }));
    }
    return SUBSCRIBERS.flatMap((subscribers) => {
      const group = `${what}, ${toSubscribers(subscribers)}`;
      const list = processes.map((peer) => ({
        group,
        peer,
        measure: session(peer, subscribers, what, context),
      }));
      if (what === 'rate' && subscribers === 1 && chosen.includes('ucx'))
        list.push({ group, peer: 'ucx', measure: ucx });
      return list;
    });
  });
}

/** Issue 4's. */
export function marks(value) {
  const list = [];
  const small = value('trip1', sized(SMALL), 'loan');
  const trips = SIZES.map((bytes) => value('trip1', sized(bytes), 'loan')).filter((us) => us !== undefined);
  if (trips.length > 1) {
    const [least, most] = [Math.min(...trips), Math.max(...trips)];
    list.push({
      mark: `a loan's round trip is the same for ${trips.length} sizes, within 10 %`,
      measured: `${micros(least)} to ${micros(most)}, ${digits((most / least - 1) * 100)} %`,
      met: most <= 1.1 * least,
    });
    if (small !== undefined) {
      list.push({
        mark: "and within 4 us of a 64 B message's",
        measured: `${(most - small).toFixed(1)} us`,
        met: most - small <= 4,
      });
    }
  }
  const [copy, bandwidth, zeromq] = ['copy', 'ucx', 'zeromq'].map((peer) => value('rate1', sized(MIB), peer));
  for (const [other, title, times] of [
    [bandwidth, "UCX's rate", 1],
    [zeromq, "four times zeromq's rate", 4],
  ]) {
    if (copy === undefined || other === undefined) continue;
    list.push({
      mark: `1 MiB by copy: at least ${title}`,
      measured: `${digits(copy / other)} times`,
      met: copy >= times * other,
    });
  }
  for (const peer of ['loan', 'copy']) {
    const grown = value('memory', FRAME_ROW, peer);
    if (grown === undefined) continue;
    list.push({
      mark: `resident memory over ${FRAMES} frames (${peer}): no frame more`,
      measured: mebibytes(grown),
      met: grown < MIB,
    });
  }
  return list;
}
