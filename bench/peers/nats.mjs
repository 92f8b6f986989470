/** NATS: a client on each side of one nats-server on the loopback interface. */
import { connect } from '@nats-io/transport-node';

export const title = 'NATS core';

const open = (spec) => connect({ servers: spec.nats, reconnect: false });

export async function receiver(spec, payload, take) {
  const client = await open(spec);
  const { fromBytes } = payload;
  client.subscribe('bench', { callback: (error, message) => error ?? take(fromBytes(message.data)) });
  await client.flush();
}

export async function sender(spec, payload) {
  const client = await open(spec);
  const { values, mask, toBytes } = payload;
  return {
    async send(count) {
      for (let i = 0; i < count; i++) {
        client.publish('bench', toBytes(values[i & mask]));
        if ((i & 4095) === 4095) await client.flush();
      }
      await client.flush();
    },
  };
}

export async function duplex(spec, side, take) {
  const client = await open(spec);
  const other = side === 'left' ? 'right' : 'left';
  client.subscribe(side, { callback: (error, message) => error ?? take(message.data) });
  await client.flush();
  return (bytes) => client.publish(other, bytes);
}
