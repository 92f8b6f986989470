import { join } from 'node:path';
import type { Native } from '../native/binding.js';
import { encodeDomain, LAYOUT, userId } from './paths.js';
import { isHeld, list } from './registry.js';

/**
 * Other versions of this library beside ours: their folders have another layout in their names (see paths.ts, and
 * native/soft/layout.h for the software device's), so nobody of theirs is seen from here, and none of ours from there.
 */

/** A folder that processes of another version use. */
export interface OtherLayout {
  readonly layout: number;
  readonly folder: string;
}

/** A registry of another version: its members and ours cannot see each other. */
export interface OtherRegistry extends OtherLayout {
  /** How many members seem to be in it. */
  readonly members: number;
}

/** Looks for the same domain in the registries of other layouts of this user. */
export function otherLayouts(
  native: Native,
  base: string,
  domain: string,
  uid: number = userId(),
): OtherRegistry[] {
  return folders('millrace', LAYOUT, base, uid)
    .map((other) => {
      const folder = join(other.folder, encodeDomain(domain));
      // Its names may mean something else, but a held lock on a presence file is a member in any layout so far.
      const files = list(folder).filter((file) => /^m-.*\.lock$/.test(file));
      return { ...other, folder, members: files.filter((file) => isHeld(native, join(folder, file))).length };
    })
    .filter(({ members }) => members > 0);
}

/** Looks for fabrics of the software device that processes of another version use. */
export function otherFabrics(native: Native, base: string, uid: number = userId()): OtherLayout[] {
  const own = Number.parseInt(native.fabricLayout, 10);
  return folders('millrace-soft', own, base, uid).flatMap((other) =>
    list(other.folder)
      .map((fabric) => ({ ...other, folder: join(other.folder, fabric) }))
      .filter(({ folder }) => isHeld(native, join(folder, 'root'))),
  );
}

/** The folders `<kind>.<layout>.<uid>` of all layouts but our own. */
function folders(kind: string, own: number, base: string, uid: number): OtherLayout[] {
  return list(base).flatMap((name) => {
    const [, found, layout, owner] = /^(.+)\.(\d{1,9})\.(\d+)$/.exec(name) ?? [];
    if (found !== kind || Number(layout) === own || owner !== String(uid)) return [];
    return [{ layout: Number(layout), folder: join(base, name) }];
  });
}
