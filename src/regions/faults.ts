import { type ErrorCode, MillraceError } from '../errors.js';
import type { Native, NativeError } from '../native/binding.js';
import { nativeError } from '../native/faults.js';
import type { NativeRegionInfo } from '../native/region-calls.js';
import { rightsText } from './options.js';

/** By errno, and the step of the addon that failed with it. */
const CODES_OF: readonly (readonly [errno: string, step: RegExp, code: ErrorCode])[] = [
  ['EINVAL', /^read a region's handle$/, 'ERR_REGION_HANDLE'],
  ['ENOENT', /^open a region$/, 'ERR_REGION_GONE'],
  ['EACCES', /^open a region$/, 'ERR_REGION_ACCESS'],
  ['EFBIG', /^reserve shared memory$/, 'ERR_REGION_LIMIT'],
  ['ENOMEM', /^map a region$/, 'ERR_REGION_LIMIT'],
  ['EOPNOTSUPP', /^show a region's bytes$/, 'ERR_REGION_BUFFER'],
  ...['EACCES', 'EPERM', 'ENOENT', 'ENOTDIR', 'ELOOP', 'EROFS'].map(
    (errno) => [errno, /regions' folder$|^create a region$/, 'ERR_FOLDER_ACCESS'] as const,
  ),
];

/**
 * An error that the addon threw for a region. `doing` completes the sentence "Could not …".
 * @param asked of an opener: what it asked for
 */
export function regionError(
  doing: string,
  native: Native,
  error: unknown,
  asked?: { handle: string; access: string },
): MillraceError {
  const general = nativeError(doing, native, error);
  const { code: errno, what = '' } = error as NativeError;
  const code = CODES_OF.find(([name, step]) => name === errno && step.test(what))?.[2];
  if (code === undefined) return general;
  const { message, errnoName } = general;
  return new MillraceError(code, message, {
    cause: error,
    ...(general.errno === undefined ? {} : { errno: general.errno }),
    ...(errnoName === undefined ? {} : { errnoName }),
    details: { ...general.details, ...(asked === undefined ? {} : compared(native, asked)) },
  });
}

/** What was asked for beside what is granted, if it can be looked at. */
function compared(native: Native, asked: { handle: string; access: string }): Record<string, unknown> {
  let info: NativeRegionInfo;
  try {
    info = native.inspectRegion(asked.handle);
  } catch {
    return { asked: asked.access };
  }
  const { mode, user, group } = info;
  return { asked: asked.access, granted: rightsText(mode), mode, user, group };
}
