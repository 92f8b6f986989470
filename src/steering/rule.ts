import type { FieldName } from './fields.js';

/** A number with a mask: bits that the mask leaves out do not count. */
export interface MaskedNumber {
  readonly value: number;
  readonly mask: number;
}
/** An address with a mask of the same form. */
export interface MaskedAddress {
  readonly value: string;
  readonly mask: string;
}

/** What packets a rule is for. Everything that is given must hold; nothing given is every packet. */
export interface MatchInput {
  /** Destination address: IPv4 or IPv6, one, a CIDR block, or with a mask. */
  readonly dst?: string | MaskedAddress;
  /** Source address, likewise. */
  readonly source?: string | MaskedAddress;
  /**
   * `'udp'`, `'tcp'`, `'icmp'` … or the number. UDP and TCP ask for their header, which fragments don't have; with a mask
   * (`{ value: 17, mask: 0xff }`) it is only the field of the IP header, and fragments match, too.
   */
  readonly protocol?: string | number | MaskedNumber;
  /** Destination port of UDP or TCP. */
  readonly port?: number | MaskedNumber;
  readonly sourcePort?: number | MaskedNumber;
  /** VLAN id of the outermost tag. */
  readonly vlan?: number | MaskedNumber;
  readonly vlanPriority?: number | MaskedNumber;
  /** `'ipv4'`, `'ipv6'`, `'arp'`, or the number: what follows all VLAN tags. */
  readonly etherType?: string | number | MaskedNumber;
  readonly ethernetDst?: string | MaskedAddress;
  readonly ethernetSource?: string | MaskedAddress;
  /** Type of service (IPv4), traffic class (IPv6). */
  readonly trafficClass?: number | MaskedNumber;
  /** Time to live (IPv4), hop limit (IPv6). */
  readonly hopLimit?: number | MaskedNumber;
  /** IPv4: 2 don't fragment, 4 more fragments. */
  readonly ipFlags?: number | MaskedNumber;
  /** IPv6. */
  readonly flowLabel?: number | MaskedNumber;
  /** Only what comes in through this network interface; any unless given. */
  readonly interface?: string;
}

/**
 * Where packets go: a stream of datagrams, which its name says. With a `next` (a channel of bytes), the payloads are also handed
 * to that.
 */
export interface Target {
  readonly name: string;
  next?(bytes: Uint8Array): void;
}

/** A target that takes payloads. */
export const isObserver = (target: Target): target is Required<Target> => typeof target.next === 'function';

/** The kinds of rules. Default ones come after every normal one; a sniffer gets a copy of everything. */
export type RuleType = 'normal' | 'all-default' | 'multicast-default' | 'sniffer';

/** A rule as it is written. */
export interface RuleInput {
  /** For people, and for remove(); `#1`, `#2` … unless given. Unique in a set. */
  readonly name?: string;
  /** `'normal'` unless given. */
  readonly type?: RuleType;
  readonly match?: MatchInput;
  /** 0 to 65535, the lower the stronger; 0 unless given. */
  readonly priority?: number;
  /** The channel that gets the packets, or its name. */
  readonly to?: string | Target;
  /** Nobody gets the packets (sniffers do). */
  readonly drop?: boolean;
  /** Alone: the packets are counted and go on to weaker rules. With `to` or `drop` they are counted anyway. */
  readonly count?: boolean;
  /** A number that the packets carry: 0 to 2^32-1. */
  readonly tag?: number;
  /** The packets go on to weaker rules as well. */
  readonly dontTrap?: boolean;
}

/** What a rule matches, ready to be compared (fields.ts has the layout). */
export interface Match {
  /** Has no bits outside the mask. */
  readonly value: Uint8Array;
  readonly mask: Uint8Array;
  /** The fields that were given. */
  readonly fields: readonly FieldName[];
  readonly family: 'ipv4' | 'ipv6' | undefined;
  readonly interface: string | undefined;
}

/** What happens to the packets. */
export type Action = { readonly to: Target } | 'drop' | 'count';

/** Where something stands in a file, both from 1. */
export interface Position {
  readonly line: number;
  readonly column: number;
}

/** A valid rule. In a set the position is its age: the first is the oldest. */
export interface Rule {
  readonly name: string;
  readonly type: RuleType;
  readonly priority: number;
  readonly match: Match;
  readonly action: Action;
  readonly tag: number | undefined;
  readonly dontTrap: boolean;
  /** Of the rule in its file. */
  readonly position: Position | undefined;
}

/** Who gets a copy, as one word: rules with the same one share a queue pair, and get one copy of a packet between them. */
export function receiver({ name, action }: Rule): string {
  if (typeof action === 'object') return `to ${action.to.name}`;
  // Nobody gets what is dropped. Each rule that counts is one to count for.
  return action === 'drop' ? 'drop' : `count ${name}`;
}

/** How messages call a rule. */
export function called({ name, position }: Pick<Rule, 'name' | 'position'>): string {
  return position === undefined ? `rule ${name}` : `rule ${name} (line ${position.line})`;
}
