import { CodecError, type DecodeLimits, MAX_DEFINITION_BYTES } from './codec.js';

/**
 * Record definitions on the wire: the payload of a DEFINE record is UTF-8 JSON, `[[number, ["key", …]], …]`. Such payloads
 * are rare, so plainness counts more than size.
 */
export type Definition = readonly [number: number, keys: readonly string[]];

/** The numbers that definitions can have: 0 up to, but not including, this. */
export const SHARED_RECORDS = 256;

/** How many bytes a definition takes in a payload, with its comma. */
export const definitionBytes = (number: number, keys: readonly string[]): number =>
  Buffer.byteLength(JSON.stringify([number, keys])) + 1;

/** Packs definitions into as few payloads as possible, each of at most MAX_DEFINITION_BYTES. */
export function definitionPayloads(definitions: Iterable<Definition>): Uint8Array[] {
  const payloads: Uint8Array[] = [];
  let parts: string[] = [];
  let bytes = 1;
  const close = () => {
    if (parts.length > 0) payloads.push(new TextEncoder().encode(`[${parts.join(',')}]`));
    parts = [];
    bytes = 1;
  };
  for (const definition of definitions) {
    const text = JSON.stringify(definition);
    const size = Buffer.byteLength(text) + 1;
    if (bytes + size > MAX_DEFINITION_BYTES) close();
    parts.push(text);
    bytes += size;
  }
  close();
  return payloads;
}

const malformed = (what: string, cause?: unknown) =>
  new CodecError(
    'ERR_CODEC_MALFORMED',
    `msgpackr: a DEFINE payload ${what}`,
    cause === undefined ? {} : { cause },
  );

/** Reads a DEFINE payload and checks all of it before anything is used (I9). */
export function parseDefinitions(payload: Uint8Array, limits: DecodeLimits): Definition[] {
  const most = Math.min(limits.bytes, 64 * 1024);
  if (payload.length > most) {
    throw new CodecError(
      'ERR_CODEC_LIMIT',
      `msgpackr: a DEFINE payload of ${payload.length} bytes exceeds the limit of ${most}`,
    );
  }
  let parsed: unknown;
  try {
    parsed = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(payload));
  } catch (error) {
    throw malformed('is not JSON', error);
  }
  if (!Array.isArray(parsed)) throw malformed('is not an array');
  for (const entry of parsed as unknown[]) {
    if (!Array.isArray(entry) || entry.length !== 2)
      throw malformed('has an entry that is not [number, keys]');
    const [number, keys] = entry as [unknown, unknown];
    if (!Number.isInteger(number) || (number as number) < 0 || (number as number) >= SHARED_RECORDS) {
      throw malformed(
        `has the record number ${String(number).slice(0, 20)}; numbers are 0 to ${SHARED_RECORDS - 1}`,
      );
    }
    if ((number as number) >= limits.records) {
      throw new CodecError(
        'ERR_CODEC_LIMIT',
        `msgpackr: record ${number} exceeds the limit of ${limits.records} definitions`,
      );
    }
    if (!Array.isArray(keys) || !keys.every((key) => typeof key === 'string')) {
      throw malformed(`defines record ${number} with keys that are not strings`);
    }
  }
  return parsed as Definition[];
}
