import { join } from 'node:path';
import { MillraceTypeError } from '../errors.js';

export { baseFolder } from '../native/base-folder.js';

/**
 * Where a domain lives on a host:
 *
 *     <base>/millrace.<layout>.<uid>/<domain>/m-<incarnation>.lock    presence: held while the member lives
 *                                             m-<incarnation>.sock    its control socket
 *                                             i-<incarnation>.<k>     its inbox (made by the transport)
 *                                             b-<incarnation>.<k>     its pool (made by the transport); stays as long as
 *                                                                     somebody holds a block of it
 *                                             t-<incarnation>.lock    the same presence file before the member is complete
 *
 * The layout is in the folder's name, so that two versions on one host never read each other's files. The domain
 * folder's inode is the domain's identity on this host, and the key of its XRC domain.
 */

/** Layout of the registry folder. Another number is another folder. */
export const LAYOUT = 1;

/** The domain that is meant when none is named. */
export const DEFAULT_DOMAIN = 'default';

/** Longest name of a file on Linux file systems, in bytes. */
const NAME_MAX = 255;

/** The effective user, who owns every folder and file of the registry. */
export function userId(): number {
  return process.geteuid?.() ?? -1;
}

/** The folder of all domains of one user, for one layout. */
export function rootFolder(base: string, uid: number = userId()): string {
  return join(base, `millrace.${LAYOUT}.${uid}`);
}

/** The folder of a domain. @throws MillraceTypeError `ERR_DOMAIN_NAME` */
export function domainFolder(base: string, domain: string, uid: number = userId()): string {
  return join(rootFolder(base, uid), encodeDomain(domain));
}

/**
 * A domain's name as a file name: letters, digits, `_`, `-` and inner dots stay, every other byte of its UTF-8 is
 * percent-encoded. Reversed by {@link decodeDomain}.
 * @throws MillraceTypeError `ERR_DOMAIN_NAME` for a name that is empty, too long, not well-formed, or has control characters
 */
export function encodeDomain(domain: string): string {
  if (typeof domain !== 'string' || domain === '') {
    throw new MillraceTypeError(
      'ERR_DOMAIN_NAME',
      `A domain's name must be a string that is not empty; this is ${JSON.stringify(domain) ?? typeof domain}.`,
    );
  }
  for (const character of domain) {
    const code = character.codePointAt(0)!;
    if (code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0xd800 && code < 0xe000)) {
      throw new MillraceTypeError(
        'ERR_DOMAIN_NAME',
        `The domain name ${JSON.stringify(domain)} contains the character U+${code.toString(16).toUpperCase().padStart(4, '0')}, ` +
          'a control character or half of a surrogate pair. Use printable characters.',
      );
    }
  }
  let encoded = '';
  for (const byte of Buffer.from(domain, 'utf8')) {
    const character = String.fromCharCode(byte);
    const plain = /[A-Za-z0-9_-]/.test(character) || (character === '.' && encoded !== '');
    encoded += plain ? character : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  }
  if (encoded.length > NAME_MAX) {
    throw new MillraceTypeError(
      'ERR_DOMAIN_NAME',
      `The domain name ${JSON.stringify(domain.slice(0, 40))}… takes ${encoded.length} bytes as a folder's name, and the ` +
        `limit is ${NAME_MAX}. Use a shorter name; characters other than A-Z a-z 0-9 _ - . take three bytes or more.`,
      { details: { bytes: encoded.length, limit: NAME_MAX } },
    );
  }
  return encoded;
}

/** The domain that a folder's name stands for; undefined when {@link encodeDomain} never makes that name. */
export function decodeDomain(name: string): string | undefined {
  try {
    const domain = decodeURIComponent(name);
    return encodeDomain(domain) === name ? domain : undefined;
  } catch {
    return undefined;
  }
}

/** Presence file of a member that can be connected to. */
export const lockName = (incarnation: number): string => `m-${incarnation}.lock`;
/** Presence file of a member that is still being made. */
export const stagedName = (incarnation: number): string => `t-${incarnation}.lock`;
/** Control socket of a member. */
export const socketName = (incarnation: number): string => `m-${incarnation}.sock`;

/** What a file in a domain's folder is. */
export interface RegistryFile {
  readonly kind: 'lock' | 'staged' | 'socket' | 'inbox' | 'pool';
  readonly incarnation: number;
}

const FILE = /^(?:(m)-(\d{1,16})\.(lock|sock)|(t)-(\d{1,16})\.lock|([ib])-(\d{1,16})\.\d{1,10})$/;

/** Reads a file name; undefined for files that the registry does not make. */
export function parseFileName(name: string): RegistryFile | undefined {
  const match = FILE.exec(name);
  if (match === null) return undefined;
  const digits = (match[2] ?? match[5] ?? match[7])!;
  const incarnation = Number(digits);
  if (!isIncarnation(incarnation) || String(incarnation) !== digits) return undefined;
  if (match[4] !== undefined) return { kind: 'staged', incarnation };
  if (match[6] !== undefined) return { kind: match[6] === 'i' ? 'inbox' : 'pool', incarnation };
  return { kind: match[3] === 'lock' ? 'lock' : 'socket', incarnation };
}

/** Whether a value can be an incarnation: an integer in 1..2^53-1. */
export function isIncarnation(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) > 0;
}
