/**
 * A member that steers what comes to its loopback interface, until standard input ends. Each line of that is a call,
 * `["add", [...]]`; what it answers is a line on standard output: `{"ok": …}` or `{"error": {code, errnoName, message}}`. The
 * channel `published` is a target for rules: `"channel"` stands for it. With --plain it gives up root's rights first.
 */
import { createSocket } from 'node:dgram';
import { createInterface } from 'node:readline';
import { join } from '../../../dist/index.mjs';

if (process.argv.includes('--plain')) {
  process.setgid(65534);
  process.setuid(65534);
}
const member = await join();
const published = member.channel('published', { codec: 'bytes', echo: true });
const { steering } = member;
const seen = { datagrams: [], published: [] };
member.datagrams('feed').subscribe(({ bytes, source, destination, port, rule }) => {
  seen.datagrams.push({ text: Buffer.from(bytes).toString(), source, destination, port, rule });
});
published.subscribe((bytes) => seen.published.push(Buffer.from(bytes).toString()));
const own = (rules) => rules.map((rule) => (rule.to === 'channel' ? { ...rule, to: published } : rule));

const calls = {
  add: (rules) => steering.add(own(rules)).map(({ name }) => name),
  // So many that no datagram of the others meets, and that no port or group is held for.
  many: (count) =>
    steering.add(
      Array.from({ length: count }, (_, i) => ({
        match: { dst: `10.9.${i >> 8}.${i & 255}`, protocol: 'tcp', interface: 'lo' },
        drop: true,
      })),
    ).length,
  remove: (names) => steering.remove(names),
  replace: (rules) => steering.replace(own(rules)).map(({ name }) => name),
  watch: async (file) => (await steering.watch(file)).file,
  stats: () => steering.stats(),
  stream: (name) => member.datagrams(name).name,
  leave: () => member.leave(),
  seen: () => seen,
  send: async (text, port) => {
    const socket = createSocket('udp4');
    await new Promise((done) => socket.send(text, port, '127.0.0.1', done));
    socket.close();
  },
};
const say = (answer) => console.log(JSON.stringify(answer));
steering.events$.subscribe(({ type }) => say({ event: type }));
for await (const line of createInterface({ input: process.stdin })) {
  const [call, ...given] = JSON.parse(line);
  try {
    say({ ok: (await calls[call](...given)) ?? null });
  } catch ({ code, errnoName, message }) {
    say({ error: { code, errnoName, message } });
  }
}
await member.leave();
