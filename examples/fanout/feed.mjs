/**
 * The example's feed: a quote a datagram, 32 bytes in network order, as market data comes over multicast.
 *   0 magic 'MRQ1' | 4 sequence (u32, per group and sender, from 1) | 8 symbol (ASCII, padded with zeros)
 *   16 price (f64) | 24 when it was sent (f64, ms since the epoch)
 */
import { struct } from 'millrace';

export const QUOTE_BYTES = 32;
const MAGIC = 0x4d525131;
const SYMBOL_BYTES = 8;

/** @typedef {{ symbol: string, sequence: number, price: number, time: number }} Quote */

/** How quotes travel on the channels. */
export const quoteCodec = struct({ symbol: 'char:8', sequence: 'u32', price: 'f64', time: 'f64' });

/** The channel that subscribers report on, and the service reads. */
export const REPORTS = 'fanout.reports';

/**
 * @param {Quote} quote its symbol has 1 to 8 ASCII characters
 * @returns {Buffer} 32 bytes of its own
 */
export function encodeQuote({ symbol, sequence, price, time }) {
  const bytes = Buffer.alloc(QUOTE_BYTES);
  bytes.writeUInt32BE(MAGIC, 0);
  bytes.writeUInt32BE(sequence, 4);
  bytes.write(symbol, 8, SYMBOL_BYTES, 'latin1');
  bytes.writeDoubleBE(price, 16);
  bytes.writeDoubleBE(time, 24);
  return bytes;
}

/**
 * @param {Uint8Array} bytes what came in; anybody may have sent it
 * @returns {Quote | undefined} undefined for what is no quote
 */
export function decodeQuote(bytes) {
  if (bytes.length !== QUOTE_BYTES) return undefined;
  const view = new DataView(bytes.buffer, bytes.byteOffset, QUOTE_BYTES);
  if (view.getUint32(0) !== MAGIC) return undefined;
  let symbol = '';
  for (let at = 8; at < 8 + SYMBOL_BYTES && bytes[at] !== 0; at++) {
    if (bytes[at] <= 0x20 || bytes[at] >= 0x7f) return undefined;
    symbol += String.fromCharCode(bytes[at]);
  }
  const price = view.getFloat64(16);
  const time = view.getFloat64(24);
  if (symbol === '' || !Number.isFinite(price) || !Number.isFinite(time)) return undefined;
  return { symbol, sequence: view.getUint32(4), price, time };
}
