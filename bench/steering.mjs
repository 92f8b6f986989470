/**
 * Datagrams from a network interface: to a subscriber in the process, against Node's dgram; through a channel to subscribers in
 * other processes; and what it costs to find the rule of a frame. A sender and the receivers are in network namespaces of their
 * own, joined by a veth pair (root only).
 */
import { execFileSync, spawn } from 'node:child_process';
import { join } from 'node:path';
import { digits, micros, percent, perSecond } from './figures.mjs';
import { newFolder, owned, scene } from './processes.mjs';

const ADDRESS = '10.9.1.1';
const PORT = 5001;
/**
 * The sender hands over up to 32 datagrams with a system call. They are cut before they leave and arrive one by one, as from a
 * wire, or stay together as long as the kernel likes, as between programs of one host (UDP_SEGMENT).
 */
const FLOWS = {
  '64 B': { bytes: 64, cut: true },
  '1400 B': { bytes: 1400, cut: true },
  '64 B, sent together': { bytes: 64, cut: false },
};
const RATES = [5, 10, 25, 50, 75, 100, 150, 200, 250, 300, 400, 500, 600, 800, 1000, 1500, 2000].map(
  (thousand) => thousand * 1000,
);
/** Datagrams a second: more than dgram takes here, and less than most machines. */
const FLOOD = 150_000;
const FANOUT_RATE = 10_000;
const LISTENERS = [1, 4, 8];
/** Of a sender, before it is asked what came. */
const SETTLE_MS = 150;

export const name = 'steering';
export const title = 'UDP of a network interface: to a subscriber, and through a channel to other processes.';
export const peers = {
  millrace: 'millrace',
  dgram: 'node:dgram',
  buffered: 'node:dgram, its\nlargest buffer',
  lane: 'a lane each',
  multicast: "delivery:\n'multicast'",
  hot: 'to 8 of them',
  spread: 'to all of them',
};
export const cases = ['received', 'fanout', 'match'];
const nanos = (value) => `${digits(value)} ns`;
export const tables = {
  rate: { title: 'most datagrams a second\nwithout loss', ours: 'millrace', show: perSecond },
  cpu: { title: 'CPU a datagram, then', ours: 'millrace', show: micros, less: true },
  sent: { title: 'most that was sent\nin a step', ours: 'millrace', show: perSecond },
  lost: { title: `lost of ${FLOOD / 1000} k/s`, ours: 'millrace', show: percent, less: true },
  fanout: {
    title: `CPU of the service a datagram,\n64 B at ${FANOUT_RATE / 1000} k/s`,
    ours: 'lane',
    show: micros,
    less: true,
  },
  fanoutLost: { title: `not there ${SETTLE_MS} ms later`, ours: 'lane', show: percent, less: true },
  match: { title: 'finding the rule of a frame', ours: 'hot', show: nanos, less: true },
};

/** The namespaces and the programs, once they are wanted; both are gone with this process. */
let made;
function world() {
  if (made !== undefined) return made;
  const folder = newFolder();
  const compile = (name, ...flags) => {
    const sources = [name, ...flags].filter((word) => word.endsWith('.cc'));
    const out = join(folder, name.replace('.cc', ''));
    const rest = flags.filter((word) => !word.endsWith('.cc'));
    execFileSync('c++', ['-O2', '-std=c++20', ...rest, ...sources, '-o', out], {
      cwd: import.meta.dirname,
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    return out;
  };
  const [left, right] = [`mrb${process.pid}a`, `mrb${process.pid}b`];
  const ip = (...words) => execFileSync('ip', words, { stdio: 'pipe' });
  for (const name of [left, right]) {
    ip('netns', 'add', name);
    process.on('exit', () => ip('netns', 'del', name));
  }
  ip('-n', left, 'link', 'add', 'a0', 'type', 'veth', 'peer', 'name', 'b0', 'netns', right);
  ip('-n', left, 'address', 'add', '10.9.1.2/24', 'dev', 'a0');
  ip('-n', right, 'address', 'add', `${ADDRESS}/24`, 'dev', 'b0');
  ip('-n', left, 'link', 'set', 'a0', 'up');
  ip('-n', right, 'link', 'set', 'b0', 'up');
  ip('-n', right, 'link', 'set', 'lo', 'up');
  made = {
    left,
    cut: (on) => ip('-n', left, 'link', 'set', 'a0', 'gso_max_segs', on ? '1' : '32'),
    blast: compile('blast.cc'),
    match: compile('match.cc', '../native/soft/flow_index.cc', '-I../native'),
    inside: { execPath: 'ip', execArgv: ['netns', 'exec', right, process.execPath] },
  };
  return made;
}

/** Sends at a rate. @returns how many were sent */
async function send(bytes, rate, ms) {
  const { left, blast } = world();
  const words = ['netns', 'exec', left, blast, ADDRESS, PORT, bytes, rate, ms].map(String);
  const child = owned(spawn('ip', words, { stdio: ['ignore', 'pipe', 'inherit'] }));
  let text = '';
  child.stdout.on('data', (chunk) => (text += chunk));
  await new Promise((resolve) => child.on('close', resolve));
  await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
  return Number(text);
}

let serial = 0;
/** What some processes counted while `body` ran, and what that resolved with. */
async function during(children, body) {
  const n = ++serial;
  const all = (word, kind) =>
    Promise.all(
      children.map(({ child, first }) => {
        const answer = first(`${kind}${n}`);
        child.send({ [word]: n });
        return answer;
      }),
    );
  await all('start', 'started');
  const result = await body();
  return { result, reports: await all('report', 'report') };
}

const where = { address: ADDRESS, port: PORT, interface: 'b0' };

/** The highest of the rates at which a receiver lost nothing, what a datagram cost there, and what it lost of a flood. */
function received(peer, row, ms) {
  const { bytes, cut } = FLOWS[row];
  return scene(peer, 120_000, async (start) => {
    world().cut(cut);
    const role = peer === 'millrace' ? 'datagrams' : 'dgram';
    const receiver = start('steering-child.mjs', { ...where, peer, role }, world().inside);
    await receiver.first('ready');
    let best = { rate: 0, each: Number.NaN };
    let most = 0;
    for (const asked of RATES) {
      const { result: sent, reports } = await during([receiver], () => send(bytes, asked, ms));
      const [{ count, micros }] = reports;
      // What was sent, which may be less than was asked for: the sender shares the machine.
      const rate = (sent * 1000) / ms;
      most = Math.max(most, rate);
      if (count < sent) break;
      if (rate > best.rate) best = { rate, each: micros / count };
    }
    const { result: sent, reports } = await during([receiver], () => send(bytes, FLOOD, ms));
    receiver.child.send('end');
    await receiver.ended;
    return [
      ['rate', row, best.rate > 0 ? best.rate : `lost some of ${perSecond(RATES[0])}`],
      ['cpu', row, best.rate > 0 ? best.each : `lost some of ${perSecond(RATES[0])}`],
      ['sent', row, most],
      ['lost', row, (100 * (sent - reports[0].count)) / sent],
    ];
  });
}

/** What a datagram costs the service, and which part of them had not reached a subscriber when it was asked. */
function fanout(delivery, subscribers, ms) {
  return scene(`${delivery}, ${subscribers} subscribers`, 60_000, async (start) => {
    const spec = { ...where, peer: delivery, delivery, subscribers };
    const run = (role) => start('steering-child.mjs', { ...spec, role }, world().inside);
    const listeners = Array.from({ length: subscribers }, () => run('subscriber'));
    await Promise.all(listeners.map(({ first }) => first('ready')));
    const service = run('service');
    await service.first('ready');
    const all = [service, ...listeners];
    const { reports } = await during(all, () => send(FLOWS['64 B'].bytes, FANOUT_RATE, ms));
    for (const { child } of all) child.send('end');
    await Promise.all(all.map(({ ended }) => ended));
    const [{ count, micros }, ...heard] = reports;
    const row = `${subscribers} subscriber${subscribers === 1 ? '' : 's'}`;
    const most = Math.max(...heard.map((one) => count - one.count));
    return [
      ['fanout', row, micros / count],
      ['fanoutLost', row, (100 * most) / count],
    ];
  });
}

/** Both orders of frames in one go: the table is the same. */
function match(order) {
  const lines = execFileSync(world().match, ['3'], { encoding: 'utf8' }).trim().split('\n');
  return lines.flatMap((line) => {
    const { rules, ...times } = JSON.parse(line);
    return [
      ['match', `${rules} rules`, times[order]],
      ['match', `${rules} rules, and counting there`, times[`${order}Counted`]],
    ];
  });
}

export function rows({ quick, pick, missing }) {
  try {
    world();
  } catch (error) {
    const why = `needs root and iproute2 for network namespaces, and a C++ compiler: ${error.message.split('\n')[0]}`;
    for (const peer of Object.keys(peers)) missing[peer] = why;
    return [];
  }
  const ms = quick ? 200 : 500;
  const chosen = pick(cases);
  const list = [];
  const add = (group, names, measure) => {
    for (const peer of pick(names)) list.push({ group, peer, measure: () => measure(peer) });
  };
  if (chosen.includes('received')) {
    for (const row of Object.keys(FLOWS))
      add(row, ['millrace', 'dgram', 'buffered'], (peer) => received(peer, row, ms));
  }
  if (chosen.includes('fanout')) {
    for (const count of LISTENERS)
      add(`to ${count}`, ['lane', 'multicast'], (peer) => fanout(peer, count, 2 * ms));
  }
  if (chosen.includes('match')) add('match', ['hot', 'spread'], match);
  return list;
}

export function marks(value) {
  const list = [];
  const add = (mark, ours, theirs, met) => {
    if (ours !== undefined && theirs !== undefined)
      list.push({ mark, measured: `${digits(ours / theirs)} times`, met: met(ours / theirs) });
  };
  for (const row of Object.keys(FLOWS)) {
    for (const theirs of ['dgram', 'buffered']) {
      add(
        `${row}, from a network interface: at least 3 times the rate without loss of ${peers[theirs].replace('\n', ' ')}`,
        value('rate', row, 'millrace'),
        value('rate', row, theirs),
        (times) => times >= 3,
      );
    }
  }
  add(
    'fan-out to 8 subscribers costs the service less than twice what one does',
    value('fanout', '8 subscribers', 'lane'),
    value('fanout', '1 subscriber', 'lane'),
    (times) => times < 2,
  );
  add(
    'the rule of a frame among 10,000 is found in less than twice the time as among 64',
    value('match', '10000 rules', 'spread'),
    value('match', '64 rules', 'spread'),
    (times) => times < 2,
  );
  return list;
}
