import { createHash } from 'node:crypto';
import type { Codec } from './codec/codec.js';
import { resolveCodec } from './codec/index.js';

const builtins = new Map<string, Codec<unknown>>();

/** Longer names (layouts of large structs) are announced by their beginning and a hash: an announcement must fit a record. */
const MAX_ANNOUNCED = 512;

/** A codec's name as it is announced and compared. */
export function announced(name: string): string {
  if (name.length <= MAX_ANNOUNCED) return name;
  return `${name.slice(0, MAX_ANNOUNCED - 80)}… sha256:${createHash('sha256').update(name).digest('hex')}`;
}

/**
 * The codec that reads what a publisher announced, for subscribers that named none (patterns mostly): the built-in ones.
 * null for a custom codec's name, and for a struct's layout, which only its definition can read.
 */
export function builtin(name: string): Codec<unknown> | null {
  if (name !== 'msgpackr' && name !== 'bytes' && name !== 'json') return null;
  let codec = builtins.get(name);
  if (codec === undefined) {
    codec = resolveCodec<unknown>(name) as Codec<unknown>;
    builtins.set(name, codec);
  }
  return codec;
}
