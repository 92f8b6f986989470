import type { NativeRegions } from '../../src/native/region-calls.js';

function none(): never {
  throw new Error('the addon in memory has no regions');
}

/** The region calls of an addon in memory: there is nothing to sweep, and nothing else is called. */
export const noRegions: NativeRegions = {
  createRegion: none,
  openRegion: none,
  regionBuffer: none,
  regionState: none,
  closeRegion: none,
  isElsewhere: () => false,
  fetch: none,
  cancelFetch: none,
  inspectRegion: none,
  sweepRegions: () => ({ regions: 0, bytes: 0 }),
};
