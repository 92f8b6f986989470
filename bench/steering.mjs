/**
 * npm run bench:steering: datagrams from a network interface to a subscriber, against Node's dgram. A sender in a network
 * namespace of its own, a receiver in another, joined by a veth pair (root only). For each receiver the highest of the rates
 * at which it lost nothing, and the CPU that a datagram cost there. The two take turns; what counts is the ratio within this run.
 */
import { execFileSync, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { parseArgs } from 'node:util';

const ADDRESS = '10.9.1.1';
const PORT = 5001;
const SIZES = [64, 1400];
const RATES = [5, 10, 25, 50, 75, 100, 150, 200, 250, 300, 400, 500, 600, 800].map(
  (thousand) => thousand * 1000,
);

/** The receiver: counts until it is asked. */
async function receive(kind) {
  let count = 0;
  let lost = () => ({});
  if (kind === 'dgram') {
    const { createSocket } = await import('node:dgram');
    const socket = createSocket('udp4');
    socket.on('message', () => count++);
    await new Promise((resolve) => socket.bind(PORT, ADDRESS, resolve));
  } else {
    const { createRequire } = await import('node:module');
    const require = createRequire(import.meta.url);
    const { loadNative } = require('../dist/native/load.js');
    const { Ports } = require('../dist/steering/ports.js');
    const { Steering } = require('../dist/steering/steering.js');
    const ports = new Ports(loadNative(), 'soft');
    const match = { dst: ADDRESS, protocol: 'udp', port: PORT, interface: 'b0' };
    ports.stream('feed').subscribe((datagram) => (count += datagram.bytes.length > 0 ? 1 : 0));
    new Steering(ports).add({ match, to: 'feed' });
    lost = () => ports.counters();
  }
  let cpu = process.cpuUsage();
  process.on('message', (what) => {
    if (what === 'start') {
      count = 0;
      cpu = process.cpuUsage();
      return process.send({});
    }
    const { user, system } = process.cpuUsage(cpu);
    process.send({ count, micros: user + system, lost: lost() });
  });
  process.send({});
}

async function main() {
  const { values } = parseArgs({
    options: { turns: { type: 'string', default: '3' }, ms: { type: 'string', default: '500' } },
  });
  const folder = mkdtempSync(join(tmpdir(), 'bench-steering-'));
  const blast = join(folder, 'blast');
  execFileSync('c++', ['-O2', '-std=c++20', join(import.meta.dirname, 'blast.cc'), '-o', blast]);
  const [left, right] = [`mrb${process.pid}a`, `mrb${process.pid}b`];
  const ip = (...words) => execFileSync('ip', words, { stdio: 'pipe' });
  const children = [];
  try {
    for (const name of [left, right]) ip('netns', 'add', name);
    ip('-n', left, 'link', 'add', 'a0', 'type', 'veth', 'peer', 'name', 'b0', 'netns', right);
    ip('-n', left, 'address', 'add', '10.9.1.2/24', 'dev', 'a0');
    ip('-n', right, 'address', 'add', `${ADDRESS}/24`, 'dev', 'b0');
    for (const [name, link] of [
      [left, 'a0'],
      [right, 'b0'],
    ])
      ip('-n', name, 'link', 'set', link, 'up');
    const results = new Map();
    for (let turn = 0; turn < Number(values.turns); turn++) {
      for (const bytes of SIZES) {
        for (const kind of ['dgram', 'millrace']) {
          const child = fork(import.meta.filename, ['--receive', kind], {
            execPath: 'ip',
            execArgv: ['netns', 'exec', right, process.execPath],
            env: { ...process.env, MILLRACE_SHM_DIR: folder },
          });
          children.push(child);
          await once(child, 'message');
          const ask = (what) => {
            const answer = once(child, 'message').then(([message]) => message);
            child.send(what);
            return answer;
          };
          let best = { rate: 0, each: 0 };
          for (const rate of RATES) {
            await ask('start');
            const sender = spawn('ip', [
              'netns',
              'exec',
              left,
              blast,
              ADDRESS,
              `${PORT}`,
              `${bytes}`,
              `${rate}`,
              values.ms,
            ]);
            let text = '';
            sender.stdout.on('data', (chunk) => (text += chunk));
            await once(sender, 'close');
            await pause(100);
            const sent = Number(text);
            const { count, micros, lost } = await ask('report');
            if (process.env.VERBOSE)
              console.log(kind, bytes, rate, sent, count, (micros / count).toFixed(2), JSON.stringify(lost));
            if (count < sent) break;
            // What was sent, which may be less than was asked for: the sender shares the machine.
            const reached = (sent * 1000) / Number(values.ms);
            if (reached > best.rate) best = { rate: reached, each: micros / count };
          }
          child.kill();
          await once(child, 'exit');
          const key = `${bytes} ${kind}`;
          results.set(key, [...(results.get(key) ?? []), best]);
        }
      }
    }
    const median = (list) => list.toSorted((a, b) => a - b)[Math.floor(list.length / 2)];
    for (const bytes of SIZES) {
      const [dgram, ours] = ['dgram', 'millrace'].map((kind) => {
        const list = results.get(`${bytes} ${kind}`);
        return { rate: median(list.map(({ rate }) => rate)), each: median(list.map(({ each }) => each)) };
      });
      const row = ({ rate, each }) => `${Math.round(rate / 1000)} k/s, ${each.toFixed(1)} us CPU each`;
      console.log(
        `${bytes} B without loss: dgram ${row(dgram)}; millrace ${row(ours)}; ` +
          `${(ours.rate / dgram.rate).toFixed(1)} times the rate (mark: 3), CPU ${(dgram.each / ours.each).toFixed(1)} times less`,
      );
    }
  } finally {
    for (const child of children) child.kill('SIGKILL');
    for (const name of [left, right]) ip('netns', 'del', name);
    rmSync(folder, { recursive: true, force: true });
  }
}

await (process.argv[2] === '--receive' ? receive(process.argv[3]) : main());
