import type { Member } from '../channels/member.js';
import type { Io } from './io.js';

/** Says what was missing where MILLRACE_DEVICE=auto took the software device. */
export function noteDevice(member: Member, io: Io): void {
  const { deviceNote } = member.resources();
  if (deviceNote !== '') io.note(deviceNote);
}
