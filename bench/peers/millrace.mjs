/** This library, from dist/: one channel, the default options. */
import { join, struct } from '../../dist/index.mjs';

export const title = 'millrace';

const optionsOf = (payload) => ({
  codec: payload.layout === undefined ? payload.codec : struct(payload.layout),
});

export async function receiver(spec, payload, take) {
  const member = await join(spec.domain, { name: 'receiver' });
  member.channel('bench', optionsOf(payload)).subscribe(take);
  return () => member.leave();
}

export async function sender(spec, payload) {
  const member = await join(spec.domain, { name: 'sender' });
  const channel = member.channel('bench', optionsOf(payload));
  await channel.ready({ subscribers: 1, timeout: 10_000 });
  const { values, mask } = payload;
  return {
    async send(count) {
      for (let i = 0; i < count; i++) {
        while (!channel.offer(values[i & mask])) await channel.whenWritable();
      }
    },
    close: () => member.leave(),
  };
}

export async function duplex(spec, side, take) {
  const member = await join(spec.domain, { name: side });
  const into = member.channel(side, { codec: 'bytes' });
  const out = member.channel(side === 'left' ? 'right' : 'left', { codec: 'bytes' });
  into.subscribe(take);
  if (side === 'left') await out.ready({ subscribers: 1, timeout: 10_000 });
  const send = (bytes) => out.next(bytes);
  send.close = () => member.leave();
  return send;
}
