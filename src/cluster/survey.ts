import * as fs from 'node:fs';
import * as net from 'node:net';
import type { Native } from '../native/binding.js';
import { type Clock, systemClock } from './clock.js';
import { ControlConnection } from './connection.js';
import { type ControlMessage, encodeFrame } from './framing.js';
import { domainFolder } from './paths.js';
import { type PresenceNote, readNote, removeFolders, scan, socketAddress, sweep } from './registry.js';

/**
 * Looking at a domain without joining it: takes no slot, no memory and no name, so it also works where a join fails.
 */

/** How a member answered. `silent`: it is alive and did not answer in time; it may be stopped, or in a long computation. */
export type Answer = 'answered' | 'silent' | 'starting' | 'failed';

/** What was found out about one member. */
export interface SurveyedMember extends PresenceNote {
  readonly incarnation: number;
  readonly answer: Answer;
  /** What its `onInspect` said: data from another process, unchecked. null unless it answered. */
  readonly report: unknown;
  /** Why there is no report, in words. */
  readonly reason?: string;
}

/** What was found in a domain's folder. */
export interface Survey {
  readonly domain: string;
  readonly folder: string;
  /** The living, oldest first. */
  readonly members: readonly SurveyedMember[];
  /** Incarnations of which only files are left; `millrace clean`, or the next one that joins, removes them. */
  readonly dead: readonly number[];
}

/**
 * Asks every member of a domain what it does. Never throws for what members do; a folder that does not exist is an empty
 * domain.
 * @param timeout how long to wait for the slowest, in ms
 * @throws MillraceTypeError `ERR_DOMAIN_NAME`
 */
export async function survey(
  native: Native,
  base: string,
  domain: string,
  timeout: number,
  clock: Clock = systemClock,
): Promise<Survey> {
  const folder = domainFolder(base, domain);
  let descriptor: number;
  try {
    descriptor = fs.openSync(folder, fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
  } catch {
    return { domain, folder, members: [], dead: [] };
  }
  try {
    const entries = scan(native, folder);
    const members = await Promise.all(
      entries
        .filter((entry) => entry.alive)
        .map(async (entry): Promise<SurveyedMember> => {
          const { incarnation } = entry;
          const known = { ...readNote(folder, entry), incarnation };
          if (entry.staged) return { ...known, answer: 'starting', report: null };
          try {
            const path = socketAddress(folder, descriptor, incarnation);
            return { ...known, ...(await ask(path, timeout, clock)) };
          } catch (error) {
            return { ...known, answer: 'failed', report: null, reason: (error as Error).message };
          }
        }),
    );
    members.sort((a, b) => a.started - b.started || a.incarnation - b.incarnation);
    return {
      domain,
      folder,
      members,
      dead: entries.filter((entry) => !entry.alive).map((entry) => entry.incarnation),
    };
  } finally {
    fs.closeSync(descriptor);
  }
}

function ask(
  path: string,
  timeout: number,
  clock: Clock,
): Promise<{ answer: Answer; report: unknown; reason?: string }> {
  return new Promise((resolve) => {
    const finish = (answer: Answer, report: unknown, reason?: string) => {
      cancel();
      connection.destroy();
      resolve({ answer, report, ...(reason === undefined ? {} : { reason }) });
    };
    const connection = new ControlConnection(net.connect({ path }), {
      message: (_, message: ControlMessage) => {
        if (message.type !== 'inspected') finish('failed', null, `it answered with a ${message.type}`);
        else if (typeof message.error === 'string') finish('failed', null, message.error);
        else finish('answered', message.body ?? null);
      },
      closed: (_, reason) =>
        finish('failed', null, reason instanceof Error ? reason.message : 'it closed the connection'),
    });
    const cancel = clock.after(timeout, () => finish('silent', null, `no answer in ${timeout} ms`));
    connection.send(encodeFrame({ type: 'inspect' }));
  });
}

/** Removes what dead members of a domain left, and its folder if nobody is in it. */
export function cleanDomain(
  native: Native,
  base: string,
  domain: string,
): { members: number; files: number; bytes: number; living: number } {
  const folder = domainFolder(base, domain);
  const { living, removed } = sweep(native, folder);
  removeFolders(folder);
  return { ...removed, living: living.length };
}
