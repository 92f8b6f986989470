/**
 * What runs in the virtual machine (`npm run test:vm`), as root, on a kernel with the RDMA device rxe0. Prints a line for
 * each check, and the counts last.
 */
import {
  check,
  conclude,
  DEVICE,
  expect,
  GID_INDEX,
  growth,
  listening,
  output,
  start,
  statistics,
  succeeds,
} from './checks.mjs';

/** The kernel's RDMA and the system's own programs work: what fails after this is ours. */
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

process.exit(conclude());
