/** A Unix socket with messages collected by hand into writes of 64 KiB: the peer to beat where bytes are small. */
import { once } from 'node:events';
import { dial } from './socket.mjs';

export { receiver } from './socket.mjs';

export const title = 'Unix socket, coalesced by hand';

const BLOCK = 64 * 1024;

export async function sender(spec, payload) {
  const socket = await dial(spec);
  const { values, mask, toBytes } = payload;
  return {
    async send(count) {
      let block = Buffer.allocUnsafe(BLOCK);
      let used = 0;
      for (let i = 0; i < count; i++) {
        const bytes = toBytes(values[i & mask]);
        const { length } = bytes;
        if (used + 4 + length > BLOCK) {
          const room = socket.write(block.subarray(0, used));
          block = Buffer.allocUnsafe(BLOCK);
          used = 0;
          if (!room) await once(socket, 'drain');
        }
        block[used] = length;
        block[used + 1] = length >> 8;
        block[used + 2] = length >> 16;
        block[used + 3] = length >> 24;
        used += 4;
        // For so few bytes a loop is faster than a call.
        if (length > 128) block.set(bytes, used);
        else for (let k = 0; k < length; k++) block[used + k] = bytes[k];
        used += length;
      }
      if (used > 0 && !socket.write(block.subarray(0, used))) await once(socket, 'drain');
    },
  };
}
