import { MillraceError, MillraceRangeError } from '../errors.js';
import { checkNames, flag, integer, invalid, invalidArgument, oneOf } from '../suggest.js';

/** What a class of users may do with a region. Writing includes reading: no memory can be written only. */
export type RegionRight = 'none' | 'read' | 'write';

/** What an opener asks for. */
export type RegionAccess = 'read' | 'write';

/** Granted rights, as those of a file. */
export interface RegionRights {
  /** The maker's user; `'write'` unless given. Its own files are always readable to it. */
  readonly user?: RegionAccess;
  /** The maker's group; `'none'` unless given. */
  readonly group?: RegionRight;
  /** Every other user of this host; `'none'` unless given. */
  readonly other?: RegionRight;
}

/** What member.region() takes. */
export interface RegionOptions {
  /** Its size. */
  readonly bytes: number;
  /** Who may open it, and how; only this user unless given. */
  readonly access?: RegionRights;
  /** Huge pages where the system has them; false unless given. `region.hugePages()` tells what came of it. */
  readonly hugePages?: boolean;
}

/** What member.openRegion() takes. */
export interface OpenRegionOptions {
  /** `'read'` unless given. */
  readonly access?: RegionAccess;
  /** Where to map it if nothing is there: a multiple of 4 MiB. */
  readonly address?: bigint;
}

/**
 * What another member needs to read bytes of a region over the network: plain data that travels on any channel. Valid while the
 * region is open in the member that made the offer.
 */
export interface RegionOffer {
  /** Of the member whose memory it is. */
  readonly incarnation: number;
  readonly address: number;
  readonly rkey: number;
  readonly bytes: number;
}

/** What member.fetch() takes. */
export interface FetchOptions {
  /** Where in the region the bytes go; 0 unless given. */
  readonly at?: number;
  /** Stops reading. */
  readonly signal?: AbortSignal;
  /** Called every 64 MiB with the number of bytes that are here. */
  readonly onProgress?: (bytes: number) => void;
}

const RIGHTS = ['none', 'read', 'write'] as const;
const ACCESSES = ['read', 'write'] as const;
const BITS = { none: 0, read: 4, write: 6 } as const;
const ALIGNMENT = 4n * 2n ** 20n;

/** Reads member.region()'s options. @throws MillraceTypeError, MillraceRangeError */
export function regionSettings(options: RegionOptions): { bytes: number; mode: number; hugePages: 0 | 1 } {
  const call = 'region()';
  if (options === undefined) invalidArgument(call, 'the options', options, '{ bytes } at least');
  checkNames(call, options, ['bytes', 'access', 'hugePages']);
  const { access = {} } = options;
  if (typeof access === 'string') {
    invalid(
      call,
      'access',
      access,
      "an object with user, group and other ('read' is what an opener asks for)",
    );
  }
  checkNames(`${call}: access`, access, ['user', 'group', 'other']);
  const bits = (name: 'group' | 'other') => BITS[oneOf(call, `access.${name}`, access[name], 'none', RIGHTS)];
  const user = BITS[oneOf(call, 'access.user', access.user, 'write', ACCESSES)];
  return {
    // null: there is no default.
    bytes: integer(call, 'bytes', options.bytes ?? null, 0, 1, Number.MAX_SAFE_INTEGER),
    mode: (user << 6) | (bits('group') << 3) | bits('other'),
    hugePages: flag(call, 'hugePages', options.hugePages) ? 1 : 0,
  };
}

/** Reads member.openRegion()'s options. @throws MillraceTypeError, MillraceError ERR_REGION_RESHARE */
export function openSettings(options: OpenRegionOptions | undefined): {
  access: RegionAccess;
  address: bigint | undefined;
} {
  const call = 'openRegion()';
  checkNames(call, options, ['access', 'address']);
  const { access, address } = options ?? {};
  if (typeof access === 'object' && access !== null) {
    throw new MillraceError(
      'ERR_REGION_RESHARE',
      `${call}: access must be 'read' or 'write'. Rights for user, group and other are granted by the region's maker, ` +
        'and a region that was opened cannot be shared again: pass on its handle.',
      { details: { access } },
    );
  }
  const fits = (hint: bigint) => hint > 0n && hint < 2n ** 64n && hint % ALIGNMENT === 0n;
  if (address !== undefined && (typeof address !== 'bigint' || !fits(address)))
    invalid(call, 'address', address, 'a BigInt above 0, of 64 bits, and a multiple of 4 MiB (0x400000n)');
  return { access: oneOf(call, 'access', access, 'read', ACCESSES), address };
}

/**
 * Reads member.fetch()'s arguments.
 * @returns where in the region the bytes go
 * @throws MillraceTypeError, MillraceRangeError, MillraceError ERR_REGION_ACCESS
 */
export function fetchSettings(
  offer: RegionOffer,
  into: { readonly byteLength: number; readonly access: RegionAccess },
  options: FetchOptions,
): number {
  const call = 'fetch()';
  checkNames(`${call}: offer`, offer ?? null, ['incarnation', 'address', 'rkey', 'bytes']);
  checkNames(call, options, ['at', 'signal', 'onProgress']);
  for (const name of ['incarnation', 'address', 'bytes'] as const)
    integer(call, `offer.${name}`, offer[name] ?? null, 0, 1, Number.MAX_SAFE_INTEGER);
  integer(call, 'offer.rkey', offer.rkey ?? null, 0, 0, 2 ** 32 - 1);
  if (options.onProgress !== undefined && typeof options.onProgress !== 'function')
    invalid(call, 'onProgress', options.onProgress, 'a function');
  if (into.access !== 'write') {
    throw new MillraceError(
      'ERR_REGION_ACCESS',
      `${call}: the region is open for reading only. Open it with access: 'write', or make one.`,
    );
  }
  const room = into.byteLength;
  if (offer.bytes > room) {
    throw new MillraceRangeError(
      'ERR_INVALID_OPTION',
      `${call}: the offer is of ${offer.bytes} bytes, and the region has ${room}.`,
      { details: { option: 'offer.bytes', value: offer.bytes, most: room } },
    );
  }
  return integer(call, 'at', options.at, 0, 0, room - offer.bytes);
}

/** A mode in words: `user read and write, group read, other nothing`. */
export function rightsText(mode: number): string {
  const words = ['nothing', '', '', '', 'read', '', 'read and write'];
  return `user ${words[(mode >> 6) & 6]}, group ${words[(mode >> 3) & 6]}, other ${words[mode & 6]}`;
}
