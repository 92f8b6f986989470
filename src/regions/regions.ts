import type { Native } from '../native/binding.js';
import { describe, invalidArgument } from '../suggest.js';
import { regionError } from './faults.js';
import { type OpenRegionOptions, openSettings, type RegionOptions, regionSettings } from './options.js';
import { Region, type RegionHost } from './region.js';

/** The regions that one member has open. */
export class Regions implements RegionHost {
  readonly native: Native;
  readonly handle: number;
  readonly incarnation: number;
  readonly #open = new Set<Region>();

  constructor(native: Native, handle: number, incarnation: number) {
    this.native = native;
    this.handle = handle;
    this.incarnation = incarnation;
  }

  get count(): number {
    return this.#open.size;
  }

  /** member.region() */
  create(options: RegionOptions): Region {
    const settings = regionSettings(options);
    try {
      const made = this.native.createRegion(this.handle, settings);
      return this.#add(new Region(this, made, 'write'));
    } catch (error) {
      throw regionError(`make a region of ${settings.bytes} bytes`, this.native, error);
    }
  }

  /** member.openRegion() */
  open(text: string, options: OpenRegionOptions | undefined): Region {
    if (typeof text !== 'string') invalidArgument('openRegion()', 'the handle', text, 'a string');
    const { access, address } = openSettings(options);
    try {
      // A null character, at which native texts end, is in no handle.
      const handle = text.includes('\0') ? '' : text;
      const opened = this.native.openRegion(this.handle, handle, access === 'write', address);
      return this.#add(new Region(this, opened, access));
    } catch (error) {
      throw regionError(`open the region ${describe(text)}`, this.native, error, { handle: text, access });
    }
  }

  /** Whether it is one of this member's, and open. */
  has(region: Region): boolean {
    return this.#open.has(region);
  }

  closeAll(): void {
    for (const region of [...this.#open]) region.close();
  }

  forget(region: Region): void {
    this.#open.delete(region);
  }

  #add(region: Region): Region {
    this.#open.add(region);
    return region;
  }
}
