/**
 * What runs in the virtual machine (`npm run test:vm`), as root, on a kernel with the RDMA device rxe0. Prints a line for
 * each check, and the counts last.
 */
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  check,
  conclude,
  DEVICE,
  expect,
  GID_INDEX,
  growth,
  gtest,
  listening,
  nativeTest,
  output,
  resources,
  start,
  statistics,
  succeeds,
} from './checks.mjs';
import { makeWire, WIRED } from './wire.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const root = dirname(dirname(here));
const node = process.execPath;
const millrace = join(root, 'dist', 'cli', 'main.js');
const member = join(here, 'member.mjs');
/** What the kernel holds while nobody uses the device: its own QP. */
const IDLE = resources();
/** Resolves when the kernel holds no more than that: it frees what a process leaves behind a little after its end. */
async function settled() {
  while (JSON.stringify(resources()) !== JSON.stringify(IDLE))
    await new Promise((resolve) => setTimeout(resolve, 100));
}
/** Node.js starts in seconds here, and in tens of seconds while the host has other work. */
const NODE_MS = 150_000;

console.log("the kernel's RDMA, and the system's own programs");
await check("the system's libibverbs sees the device", async () => {
  const text = output('ibv_devinfo', ['-d', DEVICE, '-v']);
  expect(/state:\s+PORT_ACTIVE/.test(text), `its port is not active:\n${text}`);
  expect(/GID\[\s*1\]:\s+::ffff:\d+\.\d+\.\d+\.\d+, RoCE v2/.test(text), `no IPv4-mapped GID:\n${text}`);
  return /GID\[\s*1\]:\s+(\S+),/.exec(text)[1];
});

await check('ibv_srq_pingpong of Debian, two processes', async () => {
  const before = statistics();
  const args = ['-d', DEVICE, '-g', String(GID_INDEX), '-q', '4', '-n', '200', '-p', '18600'];
  const server = start('ibv_srq_pingpong', args);
  await listening(18600);
  const client = start('ibv_srq_pingpong', [...args, '127.0.0.1']);
  await succeeds(client, 'the client');
  await succeeds(server, 'the server');
  const after = statistics();
  expect(after.rdma_sends > before.rdma_sends, `the kernel counted no sends: ${JSON.stringify(after)}`);
  return `${/([\d.]+) usec\/iter/.exec(client.text())?.[1]} us an iteration, ${growth(before, after)}`;
});

console.log('the addon');
await check(
  'millrace doctor finds the device, its kind of lanes and the right GID',
  async () => {
    const doctor = start(node, [millrace, 'doctor', '--json'], { MILLRACE_DEVICE: DEVICE });
    await succeeds(doctor, 'millrace doctor');
    const { probe, findings } = JSON.parse(doctor.text());
    const device = probe.devices.find(({ name }) => name === DEVICE);
    expect(device?.provider === 'system', `not a device of the system: ${JSON.stringify(probe)}`);
    expect(device.lanes === 'rc' && !device.can.xrc && device.can.basicSrq, `its lanes: ${device.lanes}`);
    const [port] = device.ports;
    expect(port.active && port.link === 'ethernet', `its port: ${JSON.stringify(port)}`);
    expect(port.gid === GID_INDEX, `GID ${port.gid} was chosen of ${JSON.stringify(port.gids)}`);
    expect(!findings.some(({ level }) => level === 'problem'), JSON.stringify(findings));
    return `${device.lanes} lanes, GID ${port.gid} of ${port.gids.length}`;
  },
  NODE_MS,
);

console.log("the transport's own tests, on the device");
const MEMBER = [
  'ABusySenderIsLent*',
  'ALaneCloses*',
  'AStarvedSleeper*',
  'ATargetWithoutRoom*',
  'BothStarved*',
  'CloseLeaves*',
  'ConnectRefuses*',
  'CreateSays*',
  'DisconnectDrops*',
  'DisconnectedPeers*',
  'EightMembers*',
  'FanOut*',
  'LanesRunOut',
  'ManyPieces*',
  'OwnLanes*',
  'TunnelMessages*',
  'WhatComesBefore*',
  'WhatIsAskedBack*',
].map((name) => `Member.${name}`);
await gtest(root, 'transport_member_test', MEMBER);
await gtest(root, 'transport_hostile_test', [
  'Hostile.Bad*',
  'Hostile.Dup*',
  'Hostile.Records*',
  'Hostile.Who*',
]);
await gtest(root, 'transport_faults_test', ['Rearm.*']);
// Of the two kinds of port that the software device has, the one that this device is.
await gtest(root, 'transport_group_test', ['Links/Group.*/1']);
await gtest(root, 'transport_process_test', ['Processes.AllKilledButOne', 'Processes.WithTheFloor*']);

console.log('publish and subscribe, two processes of Node.js');
/** Starts the two members; resolves with what each said it held, and what the kernel counted. */
async function pubsub(device, messages, casts) {
  await settled();
  const before = statistics();
  const subscriber = start(node, [member, 'sub', device, String(messages), String(casts)]);
  const publisher = start(node, [member, 'pub', device, String(messages), String(casts)]);
  const said = async (one) => JSON.parse((await one.until(/^holds (.*)$/m))[1]);
  const held = [await said(publisher), await said(subscriber)];
  const received = (await subscriber.until(/^received (.*)$/m))[1];
  const during = resources();
  for (const one of [publisher, subscriber]) one.child.kill('SIGTERM');
  await succeeds(publisher, 'the publisher');
  await succeeds(subscriber, 'the subscriber');
  const repaired = Number(/^repaired (\d+)$/m.exec(subscriber.text())?.[1]);
  const counted = statistics();
  await settled();
  return { during, before, counted, held, received, repaired };
}

await check(
  `2,000 messages over device: '${DEVICE}', and 200 to a group of it, in order, carried by the kernel`,
  async () => {
    const { during, before, counted, held, received, repaired } = await pubsub(DEVICE, 2000, 200);
    expect(received === '2000,200', `${received} arrived`);
    for (const one of held) {
      expect(one.device === DEVICE && one.laneKind === 'rc', `not on the device: ${JSON.stringify(one)}`);
      // A QP that sends to the peer, one that receives from it, and one of the group; a basic SRQ, and no XRC domain.
      expect(
        one.qps === 3 && one.groups === 1 && one.srqs === 1 && one.xrcds === 0,
        `it holds ${JSON.stringify(one)}`,
      );
      expect(one.gidIndex === GID_INDEX, `it uses GID ${one.gidIndex}`);
    }
    // The longest message takes three datagrams and a bit; what got lost, and each twentieth is made to, came by a lane.
    const [{ datagramsSent }, { datagramsReceived }] = held;
    expect(datagramsSent > 200 && datagramsReceived > 0, JSON.stringify(held));
    expect(
      datagramsReceived < datagramsSent && repaired > 0,
      `${repaired} repaired, ${JSON.stringify(held)}`,
    );
    // The kernel's own count of what exists, and of what it sent.
    expect(during.qp - IDLE.qp === 6, `the kernel has ${during.qp - IDLE.qp} QPs of two members`);
    expect(during.srq - IDLE.srq === 2, `the kernel has ${during.srq - IDLE.srq} SRQs of two members`);
    expect(counted.rdma_sends > before.rdma_sends, `the kernel sent nothing: ${JSON.stringify(counted)}`);
    expect(counted.rcvd_pkts > before.rcvd_pkts, `the kernel received nothing: ${JSON.stringify(counted)}`);
    return `${datagramsReceived} of ${datagramsSent} datagrams, ${repaired} messages repaired; ${growth(IDLE, during)}; ${growth(before, counted)}`;
  },
  NODE_MS,
);

await check(
  "a killed subscriber leaves nothing in the kernel, and the publisher goes on; 'auto' takes the device",
  async () => {
    await settled();
    const publisher = start(node, [member, 'serve', 'auto']);
    const victim = start(node, [member, 'hold', DEVICE]);
    await victim.until(/^received/m);
    victim.child.kill('SIGKILL');
    await victim.ended;
    await publisher.until(/^lost a peer$/m);
    const next = start(node, [member, 'sub', 'auto', '100']);
    await next.until(/^received 100$/m);
    next.child.kill('SIGTERM');
    await succeeds(next, 'the next subscriber');
    const held = JSON.parse(/^holds (.*)$/m.exec(next.text())[1]);
    expect(held.device === DEVICE && held.deviceNote === '', `it took ${JSON.stringify(held)}`);
    publisher.child.kill('SIGTERM');
    await publisher.ended;
    await settled();
  },
  NODE_MS,
);

await check(
  'members on the software device and on an adapter refuse each other, by name',
  async () => {
    const soft = start(node, [member, 'serve', 'soft']);
    const adapter = start(node, [member, 'serve', DEVICE]);
    const [, text] = await Promise.any([adapter.until(/^fault (.*)$/m), soft.until(/^fault (.*)$/m)]);
    expect(/all members of a domain need the same `device`/.test(text), text);
    for (const one of [soft, adapter]) {
      one.child.kill('SIGTERM');
      await one.ended;
    }
    return text;
  },
  NODE_MS,
);

console.log('two devices, with a wire between them');
await check(
  'a datagram to a group crosses it once, and reaches two members of the other device',
  async () => {
    makeWire();
    const before = WIRED.map((device) => statistics(device));
    const tests = start(nativeTest(root, 'transport_group_test'), ['--gtest_filter=Links/Group.One*/1'], {
      ...{
        MILLRACE_SHM_DIR: '/dev/shm',
        MILLRACE_TEST_DEVICE: WIRED[0],
        MILLRACE_TEST_OTHER_DEVICE: WIRED[1],
      },
    });
    await succeeds(tests, 'transport_group_test');
    const [from, to] = WIRED.map((device) => statistics(device)).map((after, i) => growth(before[i], after));
    // The test sends 200, and nothing else.
    expect(/sent_pkts \+200\b/.test(from) && /rcvd_pkts \+200\b/.test(to), `${from}; ${to}`);
    expect(/rdma_recvs \+400\b/.test(to), to);
    return to;
  },
);

process.exit(conclude());
