/**
 * The three payloads, each as a pool of values. The receiver adds up `weigh(value)`, so that each value is really read and a
 * lost or mixed-up message shows.
 *
 * millrace gets the values and its own codec. The peers carry bytes, so they get what a program would write by hand:
 * msgpackr's pack and unpack for the object, a DataView for the struct.
 */
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const POOL = 64;
const pool = (make) => Array.from({ length: POOL }, (_, i) => make(i));

/** Fixed layout: bid, ask, time as f64, sequence as u32; 32 bytes with padding, as struct() lays it out. */
const layout = { bid: 'f64', ask: 'f64', time: 'f64', sequence: 'u32' };

const kinds = {
  bytes: () => ({
    values: pool((i) => new Uint8Array(64).fill(i + 1)),
    weigh: (value) => value[0],
    codec: 'bytes',
    toBytes: (value) => value,
    fromBytes: (bytes) => bytes,
  }),
  object: () => {
    const { pack, unpack } = require('msgpackr');
    return {
      values: pool((i) => ({ symbol: 'EURUSD', bid: 1.0841 + i, ask: 1.0843 + i, time: 1.7e12 + i })),
      weigh: (value) => value.time - 1.7e12,
      codec: 'msgpackr',
      toBytes: pack,
      fromBytes: unpack,
    };
  },
  struct: () => ({
    values: pool((i) => ({ bid: 1.0841 + i, ask: 1.0843 + i, time: 1.7e12 + i, sequence: i })),
    weigh: (value) => value.sequence,
    layout,
    toBytes(value) {
      const bytes = new Uint8Array(32);
      const view = new DataView(bytes.buffer);
      view.setFloat64(0, value.bid, true);
      view.setFloat64(8, value.ask, true);
      view.setFloat64(16, value.time, true);
      view.setUint32(24, value.sequence, true);
      return bytes;
    },
    fromBytes(bytes) {
      const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
      return {
        bid: view.getFloat64(0, true),
        ask: view.getFloat64(8, true),
        time: view.getFloat64(16, true),
        sequence: view.getUint32(24, true),
      };
    },
  }),
};

/** A payload by name: 'bytes', 'object' or 'struct'. */
export function payload(name) {
  const made = kinds[name]();
  let sum = 0;
  for (const value of made.values) sum += made.weigh(value);
  return { ...made, mask: POOL - 1, pool: POOL, sum };
}
