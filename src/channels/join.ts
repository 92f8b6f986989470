import { basename } from 'node:path';
import { isMainThread, threadId } from 'node:worker_threads';
import type { Cluster, ClusterEvents } from '../cluster/cluster.js';
import { MillraceTypeError } from '../errors.js';
import type { Native } from '../native/binding.js';
import { aborted } from './calls.js';
import type { Clock } from './clock.js';
import { type ClusterPort, Engine } from './engine.js';
import { Member } from './member.js';
import { type JoinOptions, joinSettings } from './options.js';
import { toldReport } from './report.js';

/** What a join is made with; the tests put their own in place. */
export interface JoinParts {
  readonly native: Native;
  readonly clock: Clock;
  /** From 0 to below 1: for back-offs. */
  readonly dice: () => number;
  /** What the member is made as: one with more than channels, where a layer above adds something. */
  readonly Member?: typeof Member;
  joinCluster(options: {
    domain: string;
    name: string;
    native: Native;
    handleOptions: Parameters<typeof Cluster.join>[0]['handleOptions'];
    events: ClusterEvents;
    signal?: AbortSignal;
  }): Promise<ClusterPort>;
}

function standardName(): string {
  // A file's name may have control characters; a member's may not.
  const program = basename(process.argv[1] ?? 'node').replace(/[^\p{L}\p{M}\p{N}\p{P}\p{S} ]/gu, '?');
  return `${program}-${process.pid}${isMainThread ? '' : `-${threadId}`}`.slice(-256);
}

/** join() with its parts given: what src/join.ts calls, and the tests. */
export async function joinWith<C = undefined>(
  parts: () => JoinParts,
  domain: string = process.env.MILLRACE_DOMAIN || 'default',
  options: JoinOptions = {},
): Promise<Member<C>> {
  if (typeof domain !== 'string') {
    throw new MillraceTypeError(
      'ERR_INVALID_ARGUMENT',
      `join(): the domain must be a string, not ${typeof domain}; options come second.`,
    );
  }
  const settings = joinSettings(options, standardName());
  const { name, mode, signal, faults, device, slotBytes, slots, maxSlots, arenaBytes } = settings;
  const { poolBytes, heldBytes } = settings;
  if (signal?.aborted === true) throw aborted('join()', signal);
  const { native, clock, dice, joinCluster, Member: Made = Member } = parts();
  // The cluster delivers no event before its promise has resolved and this function has gone on.
  let engine: Engine | undefined;
  let member: Member<C> | undefined;
  const events: ClusterEvents = {
    peerUp: (peer) => engine?.membership.peerUp(peer),
    peerDown: (peer, why, detail) => engine?.membership.peerDown(peer, why, detail),
    peerSuspect: (peer, on) => engine?.membership.peerSuspect(peer, on),
    message: (peer, type, body) => engine?.membership.message(peer, type, body),
    fault: (error) => engine?.membership.clusterFault(error),
    onInspect: () => (member === undefined ? undefined : toldReport(member.inspect())),
  };
  // What the transport answers to a tunnel message is an event of the next poll, so a member that sleeps must take a turn.
  const awake: Native = {
    ...native,
    // Nor may it sleep on what it has to ask a new peer (lanes over RC come up so).
    connect(handle, peer, incarnation, offer) {
      native.connect(handle, peer, incarnation, offer);
      engine?.pump.wake();
    },
    tunnel(handle, peer, message) {
      native.tunnel(handle, peer, message);
      engine?.pump.wake();
    },
  };
  native.sweepRegions(); // what killed processes left takes room
  let cluster: ClusterPort;
  try {
    cluster = await joinCluster({
      domain,
      name,
      native: awake,
      handleOptions: {
        device,
        slotBytes,
        slots,
        maxSlots,
        arenaBytes,
        poolBytes,
        heldBytes,
        poison: process.env.MILLRACE_DEV === '1' ? 1 : 0,
        ...(faults === undefined ? {} : { faults }),
      },
      events,
      ...(signal === undefined ? {} : { signal }),
    });
  } catch (error) {
    if (signal !== undefined && error === signal.reason) throw aborted('join()', signal);
    throw error;
  }
  engine = new Engine({ native, cluster, clock, dice, domain, name, slotBytes, poolBytes, mode });
  member = Made.of<C>(domain, name, engine, cluster);
  engine.start();
  return member;
}
