import { constants } from 'node:buffer';
import { MillraceError } from '../errors.js';
import type { Native } from '../native/binding.js';
import type { NativeRegion } from '../native/region-calls.js';
import { integer } from '../suggest.js';
import { regionError } from './faults.js';
import type { RegionAccess, RegionOffer } from './options.js';

/**
 * Memory that processes of this host share: the same physical pages in all that have it open, registered with the member's
 * device. Made by member.region(), opened by member.openRegion().
 *
 * Nothing keeps readers and writers apart: who shares a region agrees on that by other means, a channel or Atomics.
 */
export class Region implements Disposable {
  /** Its size in bytes. */
  readonly byteLength: number;
  /** Where it is mapped in this process. */
  readonly address: bigint;
  /** What can be done with it here. */
  readonly access: RegionAccess;
  readonly #host: RegionHost;
  readonly #opened: NativeRegion;
  #buffer: ArrayBuffer | null = null;
  #closed = false;

  /** @internal Regions are made by members. */
  constructor(host: RegionHost, opened: NativeRegion, access: RegionAccess) {
    this.#host = host;
    this.#opened = opened;
    this.byteLength = opened.bytes;
    this.address = opened.address;
    this.access = access;
  }

  /**
   * What others ask with; any text channel carries it. It is no secret: the rights protect the region.
   * @throws MillraceError ERR_REGION_RESHARE for a region that was opened: its maker shares it, and others have its handle
   */
  get handle(): string {
    if (this.#opened.handle !== '') return this.#opened.handle;
    throw new MillraceError(
      'ERR_REGION_RESHARE',
      'This region was opened, and only its maker shares it. Pass on the handle that it was opened with.',
    );
  }

  /**
   * Its bytes, the same object at each call; empty once the region is closed. Never unmapped as long as it, or what its
   * memory was transferred to, can be reached.
   * @throws MillraceError ERR_REGION_CLOSED, ERR_REGION_BUFFER
   */
  get buffer(): ArrayBuffer {
    if (this.#closed) throw closed();
    this.#buffer ??= this.#show();
    return this.#buffer;
  }

  /** A view of all of {@link buffer}. */
  get bytes(): Uint8Array<ArrayBuffer> {
    return new Uint8Array(this.buffer);
  }

  /** Whether close() was called, or the member left. */
  get closed(): boolean {
    return this.#closed;
  }

  /** Whether all pages are present in this process, so that touching them costs nothing more. Becomes true in the background. */
  get populated(): boolean {
    return this.#state().populated;
  }

  /** Bytes in huge pages, and why there are none though they were asked for; known once {@link populated}. Slow. */
  hugePages(): { bytes: number; note: string } {
    const { hugeBytes, note } = this.#state();
    return { bytes: hugeBytes, note };
  }

  /** @internal What the native side names it with. @throws MillraceError ERR_REGION_CLOSED */
  get number(): number {
    if (this.#closed) throw closed();
    return this.#opened.region;
  }

  /**
   * Lets members on other hosts read bytes of it, with member.fetch(). They may do so until the region is closed here, all of
   * it: an RDMA key is for a region.
   * @throws MillraceError ERR_REGION_CLOSED; MillraceTypeError, MillraceRangeError ERR_INVALID_OPTION
   */
  offer(start = 0, bytes?: number): RegionOffer {
    if (this.#closed) throw closed();
    const from = integer('offer()', 'start', start, 0, 0, this.byteLength - 1);
    const length = integer('offer()', 'bytes', bytes, this.byteLength - from, 1, this.byteLength - from);
    const { rkey } = this.#opened;
    return { incarnation: this.#host.incarnation, address: Number(this.address) + from, rkey, bytes: length };
  }

  /** Ends this hold on the region: its views here become empty. The name goes with the last hold. Idempotent. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#buffer = null;
    const strays = this.#host.native.closeRegion(this.#host.handle, this.#opened.region);
    if (strays > 0) {
      process.emitWarning(
        `Somebody wrote to ${strays} pages of a region of ${this.byteLength} bytes that was opened for reading. Nobody else saw ` +
          "that, and it is undone. Open it with access: 'write' where writing is meant.",
        { type: 'MillraceWarning', code: 'stray-write' },
      );
    }
    this.#host.forget(this);
  }

  /** close() */
  [Symbol.dispose](): void {
    this.close();
  }

  #show(): ArrayBuffer {
    const { native, handle } = this.#host;
    if (this.byteLength > constants.MAX_LENGTH) {
      throw new MillraceError(
        'ERR_REGION_BUFFER',
        `The region has ${this.byteLength} bytes, and a typed array of this version of Node.js at most ${constants.MAX_LENGTH}.`,
        { details: { bytes: this.byteLength, limit: constants.MAX_LENGTH } },
      );
    }
    try {
      return native.regionBuffer(handle, this.#opened.region);
    } catch (error) {
      throw regionError("show a region's bytes", native, error);
    }
  }

  #state(): ReturnType<Native['regionState']> {
    if (this.#closed) throw closed();
    return this.#host.native.regionState(this.#host.handle, this.#opened.region);
  }
}

/** What a region needs of its member. */
export interface RegionHost {
  readonly native: Native;
  readonly handle: number;
  /** Of the member. */
  readonly incarnation: number;
  forget(region: Region): void;
}

const closed = (): MillraceError =>
  new MillraceError('ERR_REGION_CLOSED', 'This region was closed. Open it again by its handle.');
