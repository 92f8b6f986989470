import { ipText, macText } from './addresses.js';
import type { Rule } from './rule.js';

/** What a rule took: the payload of UDP, or a whole frame of anything else. It may be kept for ever. */
export class Datagram {
  /** The payload of UDP; the whole Ethernet frame if it is something else. */
  readonly bytes: Uint8Array;
  /** Name of the rule that took it. */
  readonly rule: string;
  /** The rule's tag. */
  readonly tag: number | undefined;
  /** Destination port of UDP or TCP, else 0. */
  readonly port: number;
  readonly sourcePort: number;
  /** When it was taken, in ms since the epoch. */
  readonly time: number;
  readonly #frame: number;
  readonly #frameLength: number;
  readonly #network: number;

  /** @internal Offsets are into the buffer of `bytes`. `network` is 0 where there is no IP. */
  constructor(
    bytes: Uint8Array,
    rule: Rule,
    ports: number,
    time: number,
    frame: number,
    frameLength: number,
    network: number,
  ) {
    this.bytes = bytes;
    this.rule = rule.name;
    this.tag = rule.tag;
    this.port = ports & 0xffff;
    this.sourcePort = ports >>> 16;
    this.time = time;
    this.#frame = frame;
    this.#frameLength = frameLength;
    this.#network = network;
  }

  /** Source address: IPv4 or IPv6, else the MAC address. */
  get source(): string {
    return this.#address(12, 8, 6);
  }

  /** Destination address, likewise: of a group, the group. */
  get destination(): string {
    return this.#address(16, 24, 0);
  }

  /** The Ethernet frame around it, with its VLAN tags. */
  get frame(): Uint8Array {
    return new Uint8Array(this.bytes.buffer, this.#frame, this.#frameLength);
  }

  #address(ipv4: number, ipv6: number, mac: number): string {
    const all = new Uint8Array(this.bytes.buffer);
    const at = this.#network;
    if (at === 0) return macText(all.subarray(this.#frame + mac, this.#frame + mac + 6));
    if (all[at]! >> 4 === 4) return ipText(all.subarray(at + ipv4, at + ipv4 + 4));
    return ipText(all.subarray(at + ipv6, at + ipv6 + 16));
  }
}
