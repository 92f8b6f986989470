import * as dc from 'node:diagnostics_channel';
import * as fs from 'node:fs';
import * as net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Cluster, type ClusterLimits, type HandleOptions } from '../../src/cluster/cluster.js';
import { encodeFrame } from '../../src/cluster/framing.js';
import { lockName, rootFolder, socketName } from '../../src/cluster/paths.js';
import { Recorder } from '../support/cluster-events.js';
import { ClusterNative } from '../support/cluster-native.js';
import { Puppet, Strings } from '../support/cluster-puppet.js';

const handleOptions: HandleOptions = {
  device: 'soft',
  slotBytes: 16384,
  slots: 128,
  maxSlots: 1024,
  arenaBytes: 65536,
};
let base: string;
let open: { leave(): Promise<void> }[];
let puppets: Puppet[];

beforeEach(() => {
  base = fs.mkdtempSync(join(tmpdir(), 'millrace-members-'));
  open = [];
  puppets = [];
});
afterEach(async () => {
  for (const puppet of puppets) puppet.close();
  await Promise.all(open.map((cluster) => cluster.leave()));
  const left = fs.readdirSync(base);
  fs.rmSync(base, { recursive: true, force: true });
  expect(left).toEqual([]);
});

interface Member {
  cluster: Cluster;
  events: Recorder;
  native: ClusterNative;
}

const join_ = async (
  name: string,
  options: {
    limits?: Partial<ClusterLimits>;
    native?: ClusterNative;
    signal?: AbortSignal;
    events?: Recorder;
  } = {},
): Promise<Member> => {
  const { limits, signal, native = new ClusterNative(), events = new Recorder() } = options;
  const cluster = await Cluster.join({
    domain: 'd',
    name,
    native,
    handleOptions,
    events,
    base,
    limits: { pause: 20, leaveWait: 2000, joinWait: 5000, ...limits },
    ...(signal === undefined ? {} : { signal }),
  });
  open.push(cluster);
  return { cluster, events, native };
};
const puppet = async (): Promise<Puppet> => {
  const one = await Puppet.join(new ClusterNative(), base, 'd');
  puppets.push(one);
  return one;
};
const up = (member: Member, count: number) =>
  member.events.until(`${count} peers are up`, () => member.cluster.peers.size === count);
/** The index of a peer at a member. */
const at = (member: Member, peer: { cluster: Cluster } | Puppet): number => {
  const incarnation = 'cluster' in peer ? peer.cluster.incarnation : peer.incarnation;
  return [...member.cluster.peers.values()].find((info) => info.incarnation === incarnation)!.index;
};

describe('joining and leaving', () => {
  test('everybody sees everybody, messages arrive in order, and whoever leaves has left', async () => {
    const members = [await join_('a'), await join_('b'), await join_('c')] as const;
    const [a, b, c] = members;
    for (const member of members) await up(member, 2);
    expect([...a.cluster.peers.values()].map((peer) => peer.name).sort()).toEqual(['b', 'c']);
    expect([...a.cluster.peers.values()].every((peer) => peer.pid === process.pid)).toBe(true);
    for (let i = 0; i < 200; i += 1) {
      a.cluster.send(at(a, b), 'subscribe', { i });
      c.cluster.send(at(c, b), 'subscribe', { i });
    }
    await b.events.until('400 messages', () => b.events.of('message').length === 400);
    for (const from of ['a', 'c']) {
      const bodies = b.events
        .of('message')
        .filter((event) => event.peer.name === from)
        .map((event) => event.body);
      expect(bodies).toEqual(Array.from({ length: 200 }, (_, i) => ({ i })));
    }
    await b.cluster.leave();
    for (const member of [a, c]) {
      await up(member, 1);
      expect(member.events.of('down')).toMatchObject([{ peer: { name: 'b' }, why: 'left' }]);
      expect(member.native.calls.filter((call) => call.call === 'disconnect')).toHaveLength(1);
    }
    expect(b.events.of('down')).toEqual([]);
    expect(b.native.calls.at(-1)).toMatchObject({ call: 'close' });
    expect(
      fs.readdirSync(a.cluster.folder).some((name) => name.includes(String(b.cluster.incarnation))),
    ).toBe(false);
  });

  test('no event comes before join() has resolved', async () => {
    const a = await join_('a');
    const early: string[] = [];
    const events = new Recorder();
    let joined = false;
    events.react = (event) => {
      if (!joined) early.push(event.kind);
    };
    const b = await join_('b', { events });
    joined = true;
    await up(b, 1);
    await up(a, 1);
    expect(early).toEqual([]);
  });

  test('twelve at once, again and again: a full mesh, one session a pair, nothing left', async () => {
    for (let round = 0; round < 4; round += 1) {
      const members = await Promise.all(Array.from({ length: 12 }, (_, i) => join_(`m${i}`)));
      for (const member of members) await up(member, 11);
      for (const member of members) {
        expect(member.events.of('up')).toHaveLength(11);
        expect(member.events.of('down')).toEqual([]);
        expect(member.events.of('fault')).toEqual([]);
        expect(member.native.reserved(member.cluster.handle)).toBe(11);
      }
      await Promise.all(members.map((member) => member.cluster.leave()));
      expect(fs.readdirSync(base)).toEqual([]);
    }
  });

  test('joins and leaves at random never disturb those that stay', async () => {
    const [a, b] = [await join_('a'), await join_('b')];
    await up(a, 1);
    let sent = 0;
    const visitors = Array.from({ length: 4 }, async (_, lane) => {
      for (let i = 0; i < 10; i += 1) {
        const visitor = await join_(`v${lane}.${i}`);
        a.cluster.send(at(a, b), 'x', sent);
        sent += 1;
        if (i % 3 === 0) await up(visitor, 2);
        await visitor.cluster.leave();
      }
    });
    await Promise.all(visitors);
    for (const member of [a, b]) {
      await up(member, 1);
      expect(member.events.of('down').every((event) => event.why === 'left')).toBe(true);
      expect(member.events.of('down')).toHaveLength(member.events.of('up').length - 1);
      expect(member.events.of('fault')).toEqual([]);
      expect(member.native.reserved(member.cluster.handle)).toBe(1);
    }
    await b.events.until('all messages', () => b.events.bodies.length === sent);
    expect(b.events.bodies).toEqual(Array.from({ length: sent }, (_, i) => i));
  });

  test('two domains do not see each other', async () => {
    const a = await join_('a');
    const native = new ClusterNative();
    const events = new Recorder();
    const other = await Cluster.join({ domain: 'other', name: 'o', native, handleOptions, events, base });
    open.push(other);
    expect(other.peers.size + a.cluster.peers.size).toBe(0);
  });

  test('leave() is idempotent, also from within an event', async () => {
    const a = await join_('a');
    let leaving: Promise<void> | undefined;
    a.events.react = (event) => {
      if (event.kind === 'up') leaving = a.cluster.leave();
    };
    const b = await join_('b');
    await b.events.until('a has left', () => b.events.of('down').length === 1);
    await leaving;
    await a.cluster.leave();
    expect(a.cluster.leave()).toBe(a.cluster.leave());
  });

  test('both leave at once', async () => {
    const [a, b] = [await join_('a'), await join_('b')];
    await up(a, 1);
    await Promise.all([a.cluster.leave(), b.cluster.leave()]);
    expect(fs.readdirSync(base)).toEqual([]);
  });

  test('calls after leave() do nothing', async () => {
    const [a, b] = [await join_('a'), await join_('b')];
    await up(a, 1);
    const index = at(a, b);
    await a.cluster.leave();
    a.cluster.send(index, 'x', 1);
    a.cluster.tunnel(index, new Uint8Array(1));
    a.cluster.ref(true);
  });

  test('ref() holds the event loop by the server and every connection', async () => {
    const [a, b] = [await join_('a'), await join_('b')];
    await up(a, 1);
    await up(b, 1);
    const held = () => process.getActiveResourcesInfo().filter((name) => /Pipe/.test(name)).length;
    const before = held();
    a.cluster.ref(true);
    expect(held()).toBe(before + 2);
    a.cluster.ref(false);
    expect(held()).toBe(before);
  });

  test('a path too long for a socket works all the same', async () => {
    const outer = base;
    base = join(outer, 'y'.repeat(120));
    fs.mkdirSync(base);
    const [a, b] = [await join_('a'), await join_('b')];
    await up(a, 1);
    await up(b, 1);
    await Promise.all([a.cluster.leave(), b.cluster.leave()]);
    expect(fs.readdirSync(base)).toEqual([]);
    fs.rmdirSync(base);
    base = outer;
  });
});

describe('a join that fails leaves nothing behind', () => {
  test.each([
    ['ENOSPC', 'posix_fallocate', 'ERR_SHM_FULL'],
    ['EMFILE', 'open', 'ERR_OUT_OF_FILES'],
    ['ENODEV', 'ibv_open_device', 'ERR_DEVICE'],
  ])('%s in %s', async (code, what, expected) => {
    const native = new ClusterNative();
    native.fail.set('open', Object.assign(new Error('x'), { code, errno: -5, what, detail: 'the detail' }));
    await expect(join_('a', { native })).rejects.toMatchObject({ code: expected, errno: -5 });
    expect(fs.readdirSync(base)).toEqual([]);
  });

  test('a limit of locked memory', async () => {
    const native = new ClusterNative();
    native.memlockLimit = () => 65536;
    native.fail.set(
      'open',
      Object.assign(new Error('x'), { code: 'ENOMEM', errno: -12, what: 'ibv_reg_mr', detail: '4096 bytes' }),
    );
    await expect(join_('a', { native })).rejects.toMatchObject({
      code: 'ERR_MEMLOCK',
      message: /65536 bytes.*ulimit -l/,
    });
  });

  test('aborted before', async () => {
    await expect(join_('a', { signal: AbortSignal.abort(new Error('no')) })).rejects.toThrow('no');
  });

  test('aborted while it waits for a member that does not answer', async () => {
    const silent = await puppet();
    const arrived = silent.arrival();
    const controller = new AbortController();
    const joining = join_('a', { signal: controller.signal, limits: { joinWait: 60_000 } });
    await arrived;
    controller.abort(new Error('enough'));
    await expect(joining).rejects.toThrow('enough');
    expect(fs.readdirSync(silent.registration.folder)).toEqual(
      [`m-${silent.incarnation}.lock`, `m-${silent.incarnation}.sock`].sort(),
    );
  });

  test('an odd name is a typed error', async () => {
    await expect(join_('x'.repeat(257))).rejects.toMatchObject({ code: 'ERR_INVALID_OPTION' });
    await expect(join_(undefined as never)).rejects.toMatchObject({ code: 'ERR_INVALID_OPTION' });
  });

  test('files that are taken away while they are made: it begins again', async () => {
    const native = new ClusterNative();
    const openIt = native.open.bind(native);
    let times = 2;
    native.open = (options) => {
      const handle = openIt(options);
      if (times > 0) fs.rmSync(join(options.folder, `t-${options.incarnation}.lock`));
      times -= 1;
      return handle;
    };
    const a = await join_('a', { native });
    expect(native.calls.filter((call) => call.call === 'close')).toHaveLength(2);
    const b = await join_('b');
    await up(a, 1);
    await up(b, 1);
  });

  test('a folder that is taken away while the device is opened: it begins again', async () => {
    const native = new ClusterNative();
    const openIt = native.open.bind(native);
    let times = 2;
    native.open = (options) => {
      times -= 1;
      // A sweeper that was stopped goes on: the staged file, and the folder, which is empty then.
      if (times >= 0) fs.rmSync(options.folder, { recursive: true });
      return openIt(options);
    };
    const a = await join_('a', { native });
    expect(times).toBe(-1);
    const b = await join_('b');
    await up(a, 1);
    await up(b, 1);
  });

  test('and does not go on for ever', async () => {
    const native = new ClusterNative();
    const openIt = native.open.bind(native);
    let times = 0;
    native.open = (options) => {
      times += 1;
      const handle = openIt(options);
      fs.rmSync(join(options.folder, `t-${options.incarnation}.lock`));
      return handle;
    };
    await expect(join_('a', { native })).rejects.toMatchObject({
      code: 'ERR_REGISTRY',
      message: /removed 16 times/,
    });
    expect(times).toBe(16);
  });
});

describe('a member that does not answer', () => {
  test('does not hold up a join for ever, and is connected when it goes on', async () => {
    const silent = await puppet();
    const arrival = silent.arrival();
    const a = await join_('a', { limits: { joinWait: 5 } });
    expect(a.cluster.peers.size).toBe(0);
    const strings = await arrival;
    const hello = await strings.next('hello');
    expect(hello).toMatchObject({ v: 1, incarnation: a.cluster.incarnation, name: 'a', yourSession: 0 });
    strings.send(silent.greeting('welcome'));
    await up(a, 1);
  });

  test('does not hold up a leave for ever', async () => {
    const silent = await puppet();
    const arrival = silent.arrival();
    const joining = join_('a', { limits: { leaveWait: 5 } });
    const strings = await arrival;
    await strings.next('hello');
    strings.send(silent.greeting('welcome'));
    const a = await joining;
    strings.socket.pause();
    await a.cluster.leave();
    expect(
      fs.readdirSync(a.cluster.folder).filter((name) => name.includes(String(a.cluster.incarnation))),
    ).toEqual([]);
  });
});

/** A puppet that is up at a member. */
const connected = async (limits: Partial<ClusterLimits> = {}, others: readonly string[] = []) => {
  const member = await join_('a', { limits });
  const more = await Promise.all(others.map((name) => join_(name)));
  await up(member, others.length);
  const one = await puppet();
  const strings = one.connect(member.cluster.incarnation);
  strings.send(one.greeting('hello'));
  const welcome = await strings.next('welcome');
  await up(member, others.length + 1);
  return { member, puppet: one, strings, welcome, others: more };
};

describe('death', () => {
  test('is the end of the connection and a free lock; survivors remove the files', async () => {
    const { member, puppet: one, strings } = await connected();
    fs.writeFileSync(join(one.registration.folder, `i-${one.incarnation}.0`), 'x');
    one.kill();
    strings.socket.destroy();
    await up(member, 0);
    expect(member.events.of('down')).toMatchObject([{ why: 'died', peer: { name: 'puppet' } }]);
    expect(
      fs.readdirSync(member.cluster.folder).filter((name) => name.includes(String(one.incarnation))),
    ).toEqual([]);
    expect(member.native.reserved(member.cluster.handle)).toBe(0);
  });

  test('the end of the connection alone is not death', async () => {
    const { member, puppet: one, strings } = await connected();
    const arrival = one.arrival();
    strings.socket.destroy();
    await member.events.until('suspect', () => member.events.of('suspect').length === 1);
    const again = await arrival;
    expect(await again.next('hello')).toMatchObject({ yourSession: 1, established: 1 });
    again.send(one.greeting('welcome', { established: 2 }));
    await member.events.until('not suspect', () => member.events.of('suspect').length === 2);
    expect(member.events.of('suspect').map((event) => event.on)).toEqual([true, false]);
    expect(member.events.of('up')).toHaveLength(1);
    expect(member.events.of('down')).toEqual([]);
  });

  test('a free lock alone is not noticed, and no time makes a death', async () => {
    const { member, puppet: one, strings } = await connected();
    strings.socket.pause();
    one.kill();
    member.cluster.send(at(member, one), 'x', 1);
    expect(member.cluster.peers.size).toBe(1);
    strings.socket.destroy();
    await up(member, 0);
  });

  test('death while suspect', async () => {
    const { member, puppet: one, strings } = await connected();
    one.arrival().then((again) => again.socket.destroy());
    strings.socket.destroy();
    await member.events.until('suspect', () => member.events.of('suspect').length === 1);
    one.kill();
    await up(member, 0);
    expect(member.events.of('down')).toMatchObject([{ why: 'died' }]);
  });

  test('peerDown comes before the transport lets go, so that the inbox can be emptied', async () => {
    const { member, puppet: one, strings } = await connected();
    let reserved = -1;
    member.events.react = (event) => {
      if (event.kind === 'down') reserved = member.native.reserved(member.cluster.handle);
    };
    one.kill();
    strings.socket.destroy();
    await up(member, 0);
    expect(reserved).toBe(1);
    expect(member.native.reserved(member.cluster.handle)).toBe(0);
  });

  test('a member that is killed between its goodbye and the removal of its files: others remove them', async () => {
    const { member, puppet: one, strings } = await connected();
    strings.send({ type: 'goodbye' });
    await up(member, 0);
    expect(member.events.of('down')).toMatchObject([{ why: 'left' }]);
    await strings.over();
    const folder = fs.watch(member.cluster.folder);
    const gone = new Promise<void>((resolve) => {
      folder.on('change', () => {
        if (!fs.existsSync(join(member.cluster.folder, lockName(one.incarnation)))) resolve();
      });
    });
    one.kill();
    await gone;
    folder.close();
  });
});

describe('a session outlives its connections', () => {
  test('what was not received is sent again, and nothing twice', async () => {
    const { member, puppet: one, strings } = await connected();
    const index = at(member, one);
    for (let i = 0; i < 5; i += 1) member.cluster.send(index, 'x', i);
    await strings.until(
      'five',
      () => strings.received.filter((message) => message.type === 'x').length === 5,
    );
    const arrival = one.arrival();
    strings.socket.destroy();
    for (let i = 5; i < 8; i += 1) member.cluster.send(index, 'x', i);
    const again = await arrival;
    await again.next('hello');
    again.send(one.greeting('welcome', { established: 2, received: 3 }));
    await again.until(
      'the rest',
      () => again.received.filter((message) => message.type === 'x').length === 5,
    );
    expect(again.received.filter((message) => message.type === 'x').map((message) => message.body)).toEqual([
      3, 4, 5, 6, 7,
    ]);
  });

  test('a peer that reconnects first replaces a connection whose end we have not seen', async () => {
    const { member, puppet: one, welcome } = await connected();
    const second = one.connect(member.cluster.incarnation);
    second.send(one.greeting('hello', { yourSession: welcome.session, established: 1 }));
    expect(await second.next('welcome')).toMatchObject({ session: welcome.session, established: 2 });
    member.cluster.send(at(member, one), 'x', 1);
    await second.next('x');
    expect(member.events.of('up')).toHaveLength(1);
    expect(member.events.of('down')).toEqual([]);
  });

  test('a late second attempt is refused', async () => {
    const { member, puppet: one } = await connected();
    const second = one.connect(member.cluster.incarnation);
    second.send(one.greeting('hello'));
    expect(await second.next('refuse')).toMatchObject({ code: 'duplicate' });
    await second.over();
    expect(member.events.of('down')).toEqual([]);
  });

  test('a peer that begins anew is down, then up with nothing of before', async () => {
    const { member, puppet: one } = await connected();
    member.cluster.send(at(member, one), 'x', 'old');
    const second = one.connect(member.cluster.incarnation);
    second.send(one.greeting('hello', { session: 2 }));
    const welcome = await second.next('welcome');
    expect(welcome).toMatchObject({ session: 2, established: 1, received: 0 });
    await member.events.until('up again', () => member.events.of('up').length === 2);
    expect(member.events.told.map((event) => event.kind)).toEqual(['up', 'down', 'up']);
    expect(member.events.of('down')).toMatchObject([{ why: 'refused' }]);
    member.cluster.send(at(member, one), 'x', 'new');
    expect(await second.next('x')).toMatchObject({ body: 'new' });
    expect(member.native.reserved(member.cluster.handle)).toBe(1);
  });

  test('a session that we do not know is refused, and so the peer begins anew', async () => {
    const member = await join_('a');
    const one = await puppet();
    const first = one.connect(member.cluster.incarnation);
    first.send(one.greeting('hello', { yourSession: 99, established: 4 }));
    expect(await first.next('refuse')).toMatchObject({ code: 'session' });
    expect(member.cluster.peers.size).toBe(0);
  });

  test('when a peer says that the session is over, it is', async () => {
    const { member, puppet: one, strings } = await connected();
    const arrival = one.arrival();
    strings.socket.destroy();
    const again = await arrival;
    await again.next('hello');
    const fresh = one.arrival();
    again.send({ type: 'refuse', code: 'session', message: 'over' });
    await member.events.until('down', () => member.events.of('down').length === 1);
    const third = await fresh;
    expect(await third.next('hello')).toMatchObject({ yourSession: 0, established: 0, session: 2 });
    third.send(one.greeting('welcome', { session: 7 }));
    await up(member, 1);
  });

  test('counts of received messages that cannot be are malformed', async () => {
    const { member, puppet: one, welcome } = await connected();
    const second = one.connect(member.cluster.incarnation);
    second.send(one.greeting('hello', { yourSession: welcome.session, established: 1, received: 9 }));
    await second.over();
    await member.events.until('a fault', () => member.events.of('fault').length > 0);
    expect(member.events.of('fault')[0]!.error).toMatchObject({ code: 'ERR_CONTROL_MALFORMED' });
    expect(member.events.of('down')).toEqual([]);
  });

  test('random breaks between two members lose nothing, double nothing, and keep the order', async () => {
    // Every client socket that the clusters make, through Node's own tracing channel.
    const sockets = new Set<net.Socket>();
    const seen = (message: unknown) => {
      const { socket } = message as { socket: net.Socket };
      sockets.add(socket);
      socket.on('close', () => sockets.delete(socket));
    };
    dc.subscribe('net.client.socket', seen);
    try {
      await fc.assert(
        fc.asyncProperty(
          fc.array(fc.integer({ min: 0, max: 9 }), { minLength: 20, maxLength: 80 }),
          async (steps) => {
            const [a, b] = [await join_('a'), await join_('b')];
            await up(a, 1);
            await up(b, 1);
            const [toB, toA] = [at(a, b), at(b, a)];
            let sent = 0;
            for (const step of steps) {
              if (step === 0) for (const socket of sockets) socket.destroy();
              else if (step === 1) for (const socket of sockets) socket.end();
              else if (step === 2) await new Promise((resolve) => setImmediate(resolve));
              else {
                a.cluster.send(toB, 'x', sent);
                b.cluster.send(toA, 'x', sent);
                sent += 1;
              }
            }
            const numbers = Array.from({ length: sent }, (_, i) => i);
            await a.events.until('all from b', () => a.events.bodies.length >= sent);
            await b.events.until('all from a', () => b.events.bodies.length >= sent);
            expect(a.events.bodies).toEqual(numbers);
            expect(b.events.bodies).toEqual(numbers);
            for (const member of [a, b]) {
              expect(member.events.of('down')).toEqual([]);
              expect(member.events.of('fault')).toEqual([]);
            }
            await Promise.all([a.cluster.leave(), b.cluster.leave()]);
          },
        ),
        { numRuns: 25, endOnFailure: true },
      );
    } finally {
      dc.unsubscribe('net.client.socket', seen);
    }
  });

  test('acknowledgements come now and then, and free what is kept', async () => {
    const { member, puppet: one, strings } = await connected();
    for (let i = 0; i < 40; i += 1) strings.send({ type: 'x', body: i });
    expect(await strings.next('ack')).toMatchObject({ received: 32 });
    strings.send({ type: 'x', body: 'y'.repeat(70_000) });
    await strings.until('an ack for the bytes', () =>
      strings.received.some((message) => message.type === 'ack' && message.received === 41),
    );
    member.cluster.send(at(member, one), 'x', 1);
    await strings.next('x');
    strings.send({ type: 'ack', received: 1 });
    strings.send({ type: 'ack', received: 2 });
    await member.events.until('a fault: only one was sent', () => member.events.of('fault').length > 0);
  });
});

describe('a peer that does not read', () => {
  test('is disconnected at the bound, and is a newcomer when it reads', async () => {
    const { member, puppet: one, strings } = await connected({ backlog: 300_000 });
    const index = at(member, one);
    strings.socket.pause();
    for (let i = 0; i < 40; i += 1) member.cluster.send(index, 'x', 'y'.repeat(10_000));
    // Within the turn nothing happens to a caller that walks over its peers.
    expect(member.cluster.peers.size).toBe(1);
    const arrival = one.arrival();
    await up(member, 0);
    expect(member.events.of('down')).toMatchObject([{ why: 'refused', detail: /does not read/ }]);
    expect(member.events.of('fault')).toMatchObject([{ error: { code: 'ERR_CONTROL_BACKLOG' } }]);
    member.cluster.send(index, 'x', 'to nobody');
    const again = await arrival;
    expect(await again.next('hello')).toMatchObject({ yourSession: 0, established: 0, received: 0 });
    again.send(one.greeting('welcome', { session: 2 }));
    await up(member, 1);
    expect(again.received.filter((message) => message.type === 'x')).toEqual([]);
  });
});

describe("bad input is one peer's affair", () => {
  test.each([
    ['garbage', Buffer.from('GET / HTTP/1.1\r\n\r\n')],
    ['a message that is none', Buffer.from([1, 0, 0, 0, 0x37])],
    ['a second hello', encodeFrame({ type: 'hello' })],
    ['a tunnel without data', encodeFrame({ type: 'tunnel' })],
    ['a tunnel that is not base64', encodeFrame({ type: 'tunnel', data: '*' })],
    ['an ack of nothing', encodeFrame({ type: 'ack', received: -1 })],
  ])('%s: reported, and connected again', async (_, bytes) => {
    const { member, puppet: one, strings, others } = await connected({}, ['b']);
    const other = others[0]!;
    const arrival = one.arrival();
    strings.socket.write(bytes);
    await strings.over();
    const fault = () => member.events.of('fault').find((event) => event.error.message.includes('"puppet"'));
    await member.events.until('a fault that names the peer', () => fault() !== undefined);
    expect(fault()!.error).toMatchObject({ code: 'ERR_CONTROL_MALFORMED', scope: 'operation' });
    const again = await arrival;
    await again.next('hello');
    again.send(one.greeting('welcome', { established: 2 }));
    member.cluster.send(at(member, one), 'x', 1);
    await again.next('x');
    member.cluster.send(at(member, other), 'x', 2);
    await other.events.until('a message', () => other.events.bodies.length === 1);
    expect(member.events.of('down')).toEqual([]);
  });

  test('again and again: given up, and refused from then on', async () => {
    const { member, puppet: one, strings } = await connected();
    let current = strings;
    for (let times = 2; times <= 3; times += 1) {
      const arrival = one.arrival();
      current.socket.write(Buffer.alloc(4));
      current = await arrival;
      await current.next('hello');
      current.send(one.greeting('welcome', { established: times }));
    }
    current.socket.write(Buffer.alloc(4));
    await up(member, 0);
    expect(member.events.of('down')).toMatchObject([
      { why: 'refused', detail: /malformed messages 3 times/ },
    ]);
    const later = one.connect(member.cluster.incarnation);
    later.send(one.greeting('hello', { session: 2 }));
    expect(await later.next('refuse')).toMatchObject({ code: 'protocol' });
    expect(member.native.reserved(member.cluster.handle)).toBe(0);
  });

  test('a stranger is not listened to, and many strangers do not take all descriptors', async () => {
    const a = await join_('a');
    const path = join(a.cluster.folder, socketName(a.cluster.incarnation));
    const strangers = Array.from({ length: 300 }, () => new Strings(net.connect({ path })));
    await strangers[0]!.over();
    expect(strangers.filter((stranger) => stranger.ended).length).toBeLessThanOrEqual(50);
    const last = strangers.at(-1)!;
    last.send({ type: 'subscribe', body: {} });
    await last.over();
    await a.events.until('a fault', () => a.events.of('fault').length > 0);
    expect(a.events.of('message')).toEqual([]);
    for (const stranger of strangers) stranger.socket.destroy();
  });

  test('a hello of somebody who holds no lock is refused', async () => {
    const { member, puppet: one } = await connected();
    const stranger = one.connect(member.cluster.incarnation);
    stranger.send(one.greeting('hello', { incarnation: 12345 }));
    expect(await stranger.next('refuse')).toMatchObject({ code: 'unregistered' });
    const itself = one.connect(member.cluster.incarnation);
    itself.send(one.greeting('hello', { incarnation: member.cluster.incarnation }));
    expect(await itself.next('refuse')).toMatchObject({ code: 'unregistered' });
  });

  test('another protocol version is refused in both directions, once', async () => {
    const a = await join_('a');
    const one = await puppet();
    const strings = one.connect(a.cluster.incarnation);
    strings.send(one.greeting('hello', { v: 2, offer: { other: 'shape' } }));
    expect(await strings.next('refuse')).toMatchObject({ code: 'version', message: /version 1 .*version 2/ });
    await a.events.until('a fault', () => a.events.of('fault').length === 1);
    expect(a.events.of('fault')[0]!.error).toMatchObject({ code: 'ERR_PROTOCOL_VERSION' });
    const arrival = one.arrival();
    const joining = join_('b');
    const at_ = await arrival;
    await at_.next('hello');
    at_.send(one.greeting('welcome', { v: 2 }));
    const b = await joining;
    await b.events.until('a fault', () => b.events.of('fault').length === 1);
    expect(b.events.of('fault')[0]!.error).toMatchObject({ code: 'ERR_PROTOCOL_VERSION' });
    expect([...b.cluster.peers.values()].map((peer) => peer.name)).toEqual(['a']);
  });

  test('an offer that the transport cannot use: that peer is refused, others are not', async () => {
    const a = await join_('a');
    const other = await join_('b');
    const one = await puppet();
    const strings = one.connect(a.cluster.incarnation);
    strings.send(one.greeting('hello', { offer: 'AAAA' }));
    expect(await strings.next('refuse')).toMatchObject({ code: 'protocol', message: /the offer is bad/ });
    await up(a, 1);
    expect(a.events.of('fault')[0]!.error).toMatchObject({ code: 'ERR_PEER_REFUSED' });
    expect(a.native.reserved(a.cluster.handle)).toBe(1);
    a.cluster.send(at(a, other), 'x', 1);
    await other.events.until('a message', () => other.events.bodies.length === 1);
  });

  test('a peer that refuses us after it was up is down', async () => {
    const { member, strings } = await connected();
    strings.send({ type: 'refuse', code: 'protocol', message: 'cannot connect' });
    await up(member, 0);
    expect(member.events.of('down')).toMatchObject([{ why: 'refused', detail: 'cannot connect' }]);
  });

  test('no room for a peer: refused for now, and tried again', async () => {
    const a = await join_('a');
    a.native.fail.set(
      'offer',
      Object.assign(new Error('x'), { code: 'ENOSPC', errno: -28, what: 'posix_fallocate', detail: 'full' }),
    );
    const b = await join_('b');
    await up(a, 1);
    await up(b, 1);
    expect(a.events.of('fault')).toMatchObject([
      { error: { code: 'ERR_PEER_REFUSED', cause: { code: 'ERR_SHM_FULL' } } },
    ]);
    expect(b.events.of('down')).toEqual([]);
  });

  test('no room at the one who joins: it joins, and tries again', async () => {
    const a = await join_('a');
    const native = new ClusterNative();
    native.fail.set(
      'offer',
      Object.assign(new Error('x'), { code: 'ENOMEM', errno: -12, what: 'x', detail: '' }),
    );
    const b = await join_('b', { native });
    await up(b, 1);
    await up(a, 1);
  });
});

describe('messages', () => {
  test('of the transport go to the transport', async () => {
    const [a, b] = [await join_('a'), await join_('b')];
    await up(a, 1);
    await up(b, 1);
    const whole = Uint8Array.from({ length: 40 }, (_, i) => i);
    a.cluster.tunnel(at(a, b), whole.subarray(10, 20));
    a.cluster.send(at(a, b), 'x', 'after');
    await b.events.until('the message after it', () => b.events.bodies.length === 1);
    expect(b.native.calls.filter((call) => call.call === 'tunnel')).toMatchObject([
      { peer: at(b, a), detail: Buffer.from(whole.subarray(10, 20)).toString('hex') },
    ]);
  });

  test("too large, or of a type of the cluster's own: a typed error, nothing is sent", async () => {
    const { member, puppet: one, strings } = await connected();
    const index = at(member, one);
    expect(() => member.cluster.send(index, 'x', 'y'.repeat(2 ** 20))).toThrow(
      expect.objectContaining({ code: 'ERR_CONTROL_TOO_LARGE' }),
    );
    expect(() => member.cluster.send(index, 'goodbye', null)).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARGUMENT' }),
    );
    member.cluster.send(index, 'x', 'fine');
    expect(await strings.next('x')).toMatchObject({ body: 'fine' });
    expect(strings.received.map((message) => message.type)).toEqual(['welcome', 'x']);
  });

  test('to a peer that is not there: nothing', async () => {
    const a = await join_('a');
    a.cluster.send(3, 'x', 1);
    a.cluster.tunnel(3, new Uint8Array(1));
  });

  test('a handler that throws is reported, and the next event comes', async () => {
    const { member, puppet: one, strings } = await connected();
    member.events.react = (event) => {
      if (event.kind === 'message' && event.body === 'bad') throw new Error('oops');
    };
    strings.send({ type: 'x', body: 'bad' });
    strings.send({ type: 'x', body: 'good' });
    await member.events.until('the second', () => member.events.bodies.includes('good'));
    expect(member.events.of('fault')).toMatchObject([{ error: { code: 'ERR_INTERNAL', message: /oops/ } }]);
    expect(one.incarnation).toBeGreaterThan(0);
  });

  test('an inspector gets the facts without being a member', async () => {
    const a = await join_('a');
    a.events.inspection = { channels: [{ name: 'c' }] };
    const inspector = new Strings(
      net.connect({ path: join(a.cluster.folder, socketName(a.cluster.incarnation)) }),
    );
    inspector.send({ type: 'inspect' });
    expect(await inspector.next('inspected')).toEqual({
      type: 'inspected',
      member: { incarnation: a.cluster.incarnation, name: 'a', pid: process.pid },
      body: { channels: [{ name: 'c' }] },
    });
    a.events.onInspect = () => {
      throw new Error('no facts');
    };
    inspector.received.length = 0;
    inspector.send({ type: 'inspect' });
    expect(await inspector.next('inspected')).toMatchObject({ body: null, error: 'no facts' });
    inspector.socket.destroy();
    expect(a.events.told).toEqual([]);
  });

  test('facts larger than a frame are an error in the answer', async () => {
    const a = await join_('a');
    a.events.inspection = 'x'.repeat(2 ** 20);
    const inspector = new Strings(
      net.connect({ path: join(a.cluster.folder, socketName(a.cluster.incarnation)) }),
    );
    inspector.send({ type: 'inspect' });
    expect(await inspector.next('inspected')).toMatchObject({ body: null, error: /limit is 1048576/ });
    inspector.socket.destroy();
  });
});

test('another version of the layout beside ours is said', async () => {
  const other = rootFolder(base).replace('millrace.1', 'millrace.2');
  fs.mkdirSync(join(other, 'd'), { recursive: true });
  const native = new ClusterNative();
  const token = native.lockPresence(join(other, 'd', 'm-5.lock'));
  const a = await join_('a', { native });
  await a.events.until('a fault', () => a.events.of('fault').length === 1);
  expect(a.events.of('fault')[0]!.error).toMatchObject({ code: 'ERR_LAYOUT_VERSION', message: /layout 2/ });
  native.unlockPresence(token);
  fs.rmSync(other, { recursive: true });
});
