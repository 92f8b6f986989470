/**
 * A process with shared regions, for their tests: `region-member.mjs NAME [OPTIONS]`. Takes commands as lines of JSON on
 * standard input, answers with lines of JSON. OPTIONS: the user and group to become before joining. Ends with its input.
 */
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import millrace from '../../../dist/index.js';

const [name, options = '{}'] = process.argv.slice(2);
const { uid, gid, ...joining } = JSON.parse(options);
const say = (message) =>
  process.stdout.write(
    `${JSON.stringify(message, (_, value) => (typeof value === 'bigint' ? String(value) : value))}\n`,
  );
if (gid !== undefined) {
  process.setgroups([gid]);
  process.setgid(gid);
}
if (uid !== undefined) process.setuid(uid);

const member = await millrace.join(undefined, { name, ...joining });
/** Regions by the name that the test gives them. */
const regions = new Map();

const failure = ({ code, message, details, errnoName }) => ({ ok: false, code, message, details, errnoName });

/** Runs what may fail, and answers with its code and words. */
function attempt(run) {
  try {
    return { ok: true, ...run() };
  } catch (error) {
    return failure(error);
  }
}

const show = (region) => ({ bytes: region.byteLength, address: region.address });

const commands = {
  make: ({ as, ...rest }) =>
    attempt(() => {
      const region = member.region(rest.options);
      regions.set(as, region);
      return { ...show(region), handle: region.handle };
    }),
  open: ({ as, handle, access, address }) =>
    attempt(() => {
      const region = member.openRegion(handle, {
        ...(access === undefined ? {} : { access }),
        ...(address === undefined ? {} : { address: BigInt(address) }),
      });
      regions.set(as, region);
      return show(region);
    }),
  fill: ({ as, from, to, value }) => {
    regions.get(as).bytes.fill(value, from, to);
    return {};
  },
  /** How many bytes in [from, to) have the value. */
  count: ({ as, from, to, value }) => {
    let count = 0;
    for (const byte of regions.get(as).bytes.subarray(from, to)) if (byte === value) count += 1;
    return { count };
  },
  close: ({ as }) => {
    const { bytes } = regions.get(as);
    regions.get(as).close();
    regions.delete(as);
    return { left: bytes.length };
  },
  /** Answers when so many other members are up. */
  peers: async ({ count }) => {
    while (member.peers.length < count) await new Promise((resolve) => setImmediate(resolve));
    return {};
  },
  handle: ({ as }) => attempt(() => ({ handle: regions.get(as).handle })),
  look: ({ as }) => attempt(() => ({ bytes: regions.get(as).bytes.length })),
  /** What a region is good for once it is closed. */
  closed: ({ as }) =>
    attempt(() => {
      regions.get(as).close();
      return { bytes: regions.get(as).bytes.length };
    }),
  offer: ({ as, start, bytes }) => ({ offer: regions.get(as).offer(start, bytes) }),
  fetch: async ({ as, offer, at, abort = false, leave = false }) => {
    const progress = [];
    const stop = new AbortController();
    const fetching = member.fetch(offer, regions.get(as), {
      ...(at === undefined ? {} : { at }),
      signal: stop.signal,
      onProgress: (bytes) => progress.push(bytes),
    });
    if (abort) setImmediate(() => stop.abort());
    if (leave) setImmediate(() => member.leave());
    return fetching.then(
      () => ({ ok: true, progress }),
      (error) => ({ ...failure(error), progress }),
    );
  },
  /** Fetches until that fails. */
  fetches: async ({ as, offer }) => {
    for (;;) {
      say({ type: 'under way' });
      try {
        await member.fetch(offer, regions.get(as));
      } catch (error) {
        return { ...failure(error), done: error.details.done };
      }
    }
  },
  /** Makes, opens and closes regions without end, and says each time that it has; the newest 50 stay. */
  churn: async ({ handle }) => {
    const ok = (answer) => {
      if (!answer.ok) throw new Error(answer.message);
    };
    for (let i = 0; ; i += 1) {
      const names = [`r${i % 50}`, `o${i % 50}`];
      for (const as of names) if (regions.has(as)) commands.close({ as });
      ok(commands.make({ as: names[0], options: { bytes: 65_536 } }));
      ok(commands.open({ as: names[1], handle }));
      if (i % 3 === 0) commands.close({ as: names[0] });
      say({ type: 'churns' });
      await new Promise((resolve) => setImmediate(resolve));
    }
  },
  /** Kilobytes of the region's mapping, as the kernel accounts them. */
  memory: ({ as }) => {
    const start = regions.get(as).address.toString(16);
    const [, mapping = ''] = readFileSync('/proc/self/smaps', 'latin1').split(
      new RegExp(`^0*${start}-`, 'm'),
    );
    const read = (field) => Number(new RegExp(`^${field}: +(\\d+) kB`, 'm').exec(mapping)?.[1]);
    return { rss: read('Rss'), pss: read('Pss') };
  },
};

say({ type: 'up', incarnation: member.incarnation });
for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, ...rest } = JSON.parse(line);
  if (what === 'leave') break;
  say({ type: what, ...(await commands[what](rest)) });
}
await member.leave();
process.stdin.destroy();
