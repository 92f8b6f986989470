import { createHash } from 'node:crypto';
import { nativeError } from '../../native/faults.js';
import type { Transport } from '../transport.js';

/** Slots that a member posts for the datagrams of one channel: a publisher may be so many ahead of its polling. */
const SLOTS = 256;

/**
 * What a multicast channel's address follows from: the first 16 bytes of a SHA-256 over the domain's and the channel's name.
 * The device's port decides how an address is made of it (native/transport/group.h). Channels whose addresses fall together
 * are told apart by the frames' headers.
 */
export function groupKey(domain: string, channel: string): Uint8Array {
  return createHash('sha256').update(`millrace multicast 1\0${domain}\0${channel}`).digest().subarray(0, 16);
}

/** The end of a group that sends. */
export interface SendingGroup {
  /** Its number in rows. */
  readonly number: number;
  /** Bytes of records that a datagram takes. */
  readonly room: number;
  close(): void;
}

/** A member's ends of multicast groups: one listens for all that hear a channel, and each publisher has one that sends. */
export class Groups {
  readonly #listening = new Map<string, { readonly group: number; users: number }>();

  constructor(
    private readonly transport: Transport,
    private readonly domain: string,
  ) {}

  /**
   * Listens to a channel's group until the returned function has been called by each who asked.
   * @throws MillraceError what the device refuses
   */
  listen(channel: string): () => void {
    let entry = this.#listening.get(channel);
    if (entry === undefined) {
      entry = { group: this.#open('join', channel, SLOTS).group, users: 0 };
      this.#listening.set(channel, entry);
    }
    const mine = entry;
    mine.users++;
    let listening = true;
    return () => {
      if (!listening) return;
      listening = false;
      if (--mine.users > 0) return;
      this.#listening.delete(channel);
      this.#close(mine.group);
    };
  }

  /** Opens the end of a publisher. @throws MillraceError what the device refuses */
  send(channel: string): SendingGroup {
    const { group, room } = this.#open('send to', channel, 0);
    return { number: group, room, close: () => this.#close(group) };
  }

  #open(doing: string, channel: string, slots: number): { group: number; room: number } {
    const { native, handle } = this.transport;
    try {
      return native.openGroup(handle, groupKey(this.domain, channel), slots);
    } catch (error) {
      throw nativeError(`${doing} the multicast group of channel ${JSON.stringify(channel)}`, native, error);
    }
  }

  /** With the member all of them are closed. */
  #close(group: number): void {
    if (!this.transport.closed) this.transport.native.closeGroup(this.transport.handle, group);
  }
}
