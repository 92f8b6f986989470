import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

/** Bytes of an address and of what counts of it. */
export interface Masked {
  readonly value: Uint8Array;
  readonly mask: Uint8Array;
}

/** Bytes of an IPv4 (4) or IPv6 (16) address; undefined when it is none. Zones and shortened IPv4 are none. */
export function ipBytes(text: string): Uint8Array | undefined {
  if (isIP(text) === 0 || text.includes('%')) return undefined;
  return Uint8Array.from(ipaddr.parse(text).toByteArray());
}

/** An address in its usual form. Bytes: 4 or 16. */
export function ipText(bytes: Uint8Array): string {
  return ipaddr.fromByteArray([...bytes]).toString();
}

/** Bytes of `01:00:5e:01:01:07`, also with dashes. */
export function macBytes(text: string): Uint8Array | undefined {
  if (!/^[0-9a-f]{2}([:-][0-9a-f]{2}){5}$/i.test(text)) return undefined;
  return Uint8Array.from(text.split(/[:-]/), (part) => Number.parseInt(part, 16));
}

/** A MAC address as text. */
export const macText = (bytes: Uint8Array): string =>
  Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join(':');

/** `10.0.0.0/8` or one address. A text says what is wrong. */
export function parseCidr(text: string): Masked | string {
  if (text.includes('%')) return "has a zone, which the rule's interface is for";
  const slash = text.indexOf('/');
  const value = ipBytes(slash < 0 ? text : text.slice(0, slash));
  if (value === undefined) return 'is no IPv4 or IPv6 address';
  const bits = value.length * 8;
  if (slash < 0) return { value, mask: prefix(bits, bits) };
  const length = text.slice(slash + 1);
  if (!/^\d{1,3}$/.test(length) || Number(length) > bits)
    return `has a prefix length that is not 0 to ${bits}`;
  const mask = prefix(Number(length), bits);
  if (outside(value, mask)) {
    const block = value.map((byte, i) => byte & mask[i]!);
    return `has bits beyond its prefix; the block is ${ipText(block)}/${length}`;
  }
  return { value, mask };
}

/** A mask of so many leading ones. */
function prefix(length: number, bits: number): Uint8Array {
  return Uint8Array.from(
    { length: bits / 8 },
    (_, i) => (0xff00 >> Math.max(0, Math.min(8, length - 8 * i))) & 0xff,
  );
}

/** Whether the value has bits that do not count. */
export const outside = (value: Uint8Array, mask: Uint8Array): boolean =>
  value.some((byte, i) => (byte & ~mask[i]! & 0xff) !== 0);

/** A block or one address, as text; with its mask where that is no prefix. */
export function maskedIpText({ value, mask }: Masked): string {
  const bits = value.length * 8;
  for (let length = 0; length <= bits; length++) {
    const wanted = prefix(length, bits);
    if (mask.every((byte, i) => byte === wanted[i])) {
      return length === bits ? ipText(value) : `${ipText(value)}/${length}`;
    }
  }
  return `${ipText(value)} mask ${ipText(mask)}`;
}
