/**
 * A process of the section steering. Told what to do by its argument (JSON); answers its parent over the IPC channel: {ready}
 * once datagrams may come, `{start: n}` with {started<n>}, and `{report: n}` with {report<n>}: what came since, and the CPU that
 * it took. Any other message ends it.
 */
import { join } from '../dist/index.mjs';

const spec = JSON.parse(process.argv[2]);
let member;
/** Datagrams so far: those that came here; of a service, those that its rule took. */
let count = 0;
let counted = () => count;

const rule = { match: { dst: spec.address, protocol: 'udp', port: spec.port, interface: spec.interface } };
const channel = () => member.channel('feed', { codec: 'bytes', delivery: spec.delivery });

const roles = {
  async dgram() {
    const { createSocket } = await import('node:dgram');
    // The kernel cuts the wish down to net.core.rmem_max.
    const recvBufferSize = spec.peer === 'buffered' ? 1 << 30 : undefined;
    const socket = createSocket({ type: 'udp4', recvBufferSize });
    socket.on('message', () => count++);
    await new Promise((resolve) => socket.bind(spec.port, spec.address, resolve));
  },
  async datagrams() {
    member = await join(spec.domain);
    const feed = member.datagrams('feed');
    feed.subscribe(({ bytes }) => (count += bytes.length > 0 ? 1 : 0));
    member.steering.add({ ...rule, to: feed });
  },
  async service() {
    member = await join(spec.domain);
    const feed = channel();
    await feed.ready({ subscribers: spec.subscribers, timeout: 30_000 });
    member.steering.add({ ...rule, to: feed });
    counted = () => member.steering.stats()[0].packets;
  },
  async subscriber() {
    member = await join(spec.domain);
    channel().subscribe(() => count++);
  },
};

await roles[spec.role]();
let from = 0;
let cpu = process.cpuUsage();
process.on('message', async ({ start, report }) => {
  if (start !== undefined) {
    from = counted();
    cpu = process.cpuUsage();
    process.send({ [`started${start}`]: true });
  } else if (report !== undefined) {
    const { user, system } = process.cpuUsage(cpu);
    process.send({ [`report${report}`]: { count: counted() - from, micros: user + system } });
  } else {
    await member?.leave();
    process.exit(0);
  }
});
process.send({ ready: true });
