import { baseFolder } from '../cluster/paths.js';
import { listDomains } from '../cluster/registry.js';
import { cleanDomain } from '../cluster/survey.js';
import type { Native } from '../native/binding.js';
import { nativeError } from '../native/faults.js';
import { loadNative } from '../native/load.js';
import type { Context } from './context.js';
import { EXIT } from './exit.js';
import type { CommonOptions } from './options.js';
import { toSize } from './render.js';

/** Options of `millrace clean`. */
export interface CleanOptions extends CommonOptions {
  readonly all?: boolean;
}

/**
 * `millrace clean`: removes what dead members left in shared memory. Living ones are not touched, and running it twice, or at
 * any time, is safe.
 */
export async function clean(options: CleanOptions, { io }: Context): Promise<number> {
  const native = loadNative();
  const base = baseFolder(io.streams.env);
  const domains = options.all ? listDomains(base) : [options.domain];
  const cleaned = domains.map((domain) => ({ domain, ...cleanDomain(native, base, domain) }));
  // The software device has a folder of its own, which all domains of a fabric share.
  const device = cleanFabric(native);
  const regions = native.sweepRegions();
  if (options.json) {
    await io.line(JSON.stringify({ domains: cleaned, device, regions }));
  } else {
    for (const { domain, members, files, bytes, living } of cleaned) {
      if (files === 0) continue;
      await io.line(
        `domain ${domain}: removed ${count(files, 'file')} (${toSize(bytes)}) of ${count(members, 'dead member')}; ${count(living, 'member')} live${living === 1 ? 's' : ''}`,
      );
    }
    // Bytes without processes: of a fabric in another layout nobody can tell who they were.
    if (device.bytes > 0) {
      const whose =
        device.reaped > 0
          ? count(device.reaped, 'dead process', 'dead processes')
          : 'a fabric that nobody uses';
      await io.line(`software device: removed ${toSize(device.bytes)} of ${whose}`);
    }
    if (regions.regions > 0)
      await io.line(
        `regions: removed ${toSize(regions.bytes)} of ${count(regions.regions, 'region')} that nobody holds`,
      );
    if (device.bytes === 0 && regions.regions === 0 && cleaned.every(({ files }) => files === 0))
      io.note('nothing to clean');
  }
  return EXIT.OK;
}

const count = (number: number, one: string, many = `${one}s`): string =>
  `${number} ${number === 1 ? one : many}`;

/** @throws MillraceError `ERR_LAYOUT_VERSION`: processes of another layout use the fabric */
function cleanFabric(native: Native): { reaped: number; bytes: number } {
  try {
    return native.cleanFabric();
  } catch (error) {
    throw nativeError("clean the software device's memory", native, error);
  }
}
