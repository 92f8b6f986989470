/** Loans and leases between two ports of one fabric: as between hosts, nothing is mapped, and payloads are read by RDMA READ. */
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { Channel, JoinOptions, Lease, Member } from '../../src/index.js';
import { Domain, until } from '../support/lending.js';

const MIB = 1 << 20;

let domain: Domain;
beforeEach(() => {
  domain = new Domain({ MILLRACE_SOFT_DEVICES: '2' });
});
afterEach(async () => {
  expect(await domain.end()).toEqual([]);
});

/** A publisher and a subscriber of bytes, on two ports. */
async function apart(
  publisher: JoinOptions = {},
  subscriber: JoinOptions = {},
  channel = {},
): Promise<{ pub: Member; sub: Member; out: Channel<Uint8Array>; back: Channel<Uint8Array> }> {
  const pub = await domain.member('pub', { device: 'soft0', ...publisher });
  const sub = await domain.member('sub', { device: 'soft1', ...subscriber });
  return {
    pub,
    sub,
    out: pub.channel('x', { codec: 'bytes' }),
    back: sub.channel('x', { codec: 'bytes', ...channel }),
  };
}

const free = (member: Member): boolean => {
  const { blocksInUse, holds, leases } = member.resources();
  return blocksInUse === 0 && holds === 0 && leases === 0;
};

/** A payload whose bytes can be told from their neighbours. */
function payload(bytes: number, seed: number): Uint8Array {
  const words = new Uint32Array(bytes / 4);
  for (let i = 0; i < words.length; i++) words[i] = Math.imul(i + seed, 2_654_435_761);
  return new Uint8Array(words.buffer);
}

test('a loan and a plain payload of 4 MiB are read into blocks of the subscriber', async () => {
  const { pub, sub, out, back } = await apart();
  const leases: Lease[] = [];
  const values: Uint8Array[] = [];
  back.leases().subscribe((lease) => leases.push(lease));
  await out.ready();
  const loan = out.loan(4 * MIB);
  loan.bytes.set(payload(4 * MIB, 1));
  expect(await out.publish(loan)).toEqual({ sequence: 1, received: 1, dropped: 0 });
  await until(() => leases.length === 1);
  expect(Buffer.compare(leases[0]!.bytes, payload(4 * MIB, 1))).toBe(0);
  // Acknowledged: what the lease shows is a block of the subscriber's own.
  await until(() => free(pub));
  expect(sub.resources()).toMatchObject({ blocksInUse: 1, leases: 1, leasedBytes: 4 * MIB });
  leases[0]!.release();
  await until(() => free(sub));

  back.subscribe((value) => values.push(value));
  out.next(payload(4 * MIB, 2));
  await until(() => values.length === 1 && leases.length === 2);
  expect(Buffer.compare(values[0]!, payload(4 * MIB, 2))).toBe(0);
  expect(Buffer.compare(leases[1]!.bytes, payload(4 * MIB, 2))).toBe(0);
  await until(() => free(pub));
  leases[1]!.release();
});
