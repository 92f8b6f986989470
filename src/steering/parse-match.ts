import { closest, describe } from '../suggest.js';
import { ipBytes, type Masked, macBytes, outside, parseCidr } from './addresses.js';
import {
  addLayers,
  ETHER_TYPE,
  FIELD_NAMES,
  FIELDS,
  type FieldName,
  HEADER_BYTES,
  IP_FLAG,
  LAYER,
  PROTOCOL,
  readNumber,
  writeNumber,
} from './fields.js';
import type { Match } from './rule.js';

/** Says what is wrong with a field, and what to write instead. */
export type Complain = (field: string, message: string, remedy: string) => void;

/** A number that counts under a mask. */
interface Bits {
  readonly value: number;
  readonly mask: number;
}

const KNOWN = [...FIELD_NAMES, 'interface'];
const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The fields that only one IP version has, or says. */
const FAMILY_WORDS: Readonly<Record<string, 'ipv4' | 'ipv6'>> = {
  icmp: 'ipv4',
  igmp: 'ipv4',
  icmpv6: 'ipv6',
};

/**
 * Reads what a rule matches. @returns undefined after a complaint
 */
export function parseMatch(input: unknown, complain: Complain): Match | undefined {
  if (!isObject(input)) {
    complain(
      'match',
      `match must be an object, not ${describe(input)}`,
      'Write match: { dst: …, protocol: … }.',
    );
    return undefined;
  }
  const reader = new MatchReader(input, complain);
  return reader.read();
}

class MatchReader {
  private readonly value = new Uint8Array(HEADER_BYTES);
  private readonly mask = new Uint8Array(HEADER_BYTES);
  private readonly fields: FieldName[] = [];
  private wrong = false;
  /** IP versions, with the field that said so. */
  private readonly families = new Map<'ipv4' | 'ipv6', string>();
  private transport: 'tcp' | 'udp' | undefined;

  constructor(
    private readonly input: Record<string, unknown>,
    private readonly say: Complain,
  ) {}

  read(): Match | undefined {
    for (const name of Object.keys(this.input)) {
      if (KNOWN.includes(name)) continue;
      const meant = closest(name, KNOWN);
      this.complain(
        name,
        `there is no field ${JSON.stringify(name)}`,
        meant === undefined ? `There are ${KNOWN.join(', ')}.` : `Did you mean ${JSON.stringify(meant)}?`,
      );
    }
    for (const name of FIELD_NAMES) {
      const given = this.input[name];
      if (given === undefined) continue;
      this.fields.push(name);
      if (FIELDS[name].kind === 'number') this.number(name, given);
      else this.address(name, given);
    }
    const { interface: port } = this.input;
    if (port !== undefined && (typeof port !== 'string' || !/^[^\s/]{1,15}$/.test(port))) {
      this.complain(
        'interface',
        `${describe(port)} is no name of a network interface`,
        'Use a name that `ip link` shows, such as eth0.',
      );
    }
    // Whether fields go together can be said only of fields that could be read.
    const family = this.wrong ? undefined : this.family();
    if (!this.wrong) this.addHeaders(family);
    if (this.wrong) return undefined;
    return {
      value: this.value,
      mask: this.mask,
      fields: this.fields,
      family,
      interface: port as string | undefined,
    };
  }

  private complain(field: string, message: string, remedy: string): void {
    this.wrong = true;
    this.say(`match.${field}`, message, remedy);
  }

  private number(name: FieldName, given: unknown): void {
    const field = FIELDS[name];
    const most = 2 ** field.bits - 1;
    const bits = this.bits(name, given, most);
    if (bits === undefined) return;
    if (name === 'protocol') {
      const udpOrTcp = isObject(given) ? undefined : transportOf(bits.value);
      if (udpOrTcp !== undefined) {
        // The header itself is asked for, not the number in front of it.
        this.transport = udpOrTcp;
        return;
      }
    }
    // A tag is asked for by its bits: no device is told that there must be one, whatever it says.
    if ((name === 'vlan' || name === 'vlanPriority') && bits.mask === 0) {
      this.complain(name, 'with a mask of 0 it matches packets without a tag as well', 'Leave it out.');
      return;
    }
    writeNumber(this.value, field, bits.value);
    writeNumber(this.mask, field, bits.mask);
  }

  /** A number, a word for one, or `{ value, mask }`. */
  private bits(name: FieldName, given: unknown, most: number): Bits | undefined {
    if (isObject(given)) {
      if (!this.pair(name, given)) return undefined;
      const value = this.plain(`${name}.value`, given.value, most);
      const mask = this.plain(`${name}.mask`, given.mask, most);
      if (value === undefined || mask === undefined) return undefined;
      // Whole parts: bit operations of the language have 32 bits, and all fields have fewer.
      if ((value & ~mask) !== 0) {
        this.complain(
          name,
          `the value ${hex(value)} has bits outside its mask ${hex(mask)}`,
          `Use the value ${hex(value & mask)}, or a wider mask.`,
        );
        return undefined;
      }
      return { value, mask };
    }
    const words = WORDS[name];
    if (typeof given === 'string' && words !== undefined) {
      const word = given.toLowerCase();
      // Every object has words of its own, such as `constructor`.
      if (Object.hasOwn(words, word)) {
        const value = words[word]!;
        const family = FAMILY_WORDS[word];
        if (family !== undefined) this.families.set(family, `protocol ${given}`);
        return { value, mask: most };
      }
      const meant = closest(given, Object.keys(words));
      this.complain(
        name,
        `${describe(given)} is not known`,
        `Use ${Object.keys(words).join(', ')}, or a number${meant === undefined ? '.' : `; did you mean ${JSON.stringify(meant)}?`}`,
      );
      return undefined;
    }
    const value = this.plain(name, given, most);
    return value === undefined ? undefined : { value, mask: most };
  }

  private plain(field: string, given: unknown, most: number): number | undefined {
    if (typeof given === 'number' && Number.isInteger(given) && given >= 0 && given <= most) return given;
    this.complain(field, `${describe(given)} is not a whole number from 0 to ${most}`, `Use 0 to ${most}.`);
    return undefined;
  }

  /** Whether an object is `{ value, mask }`. */
  private pair(name: string, given: Record<string, unknown>): boolean {
    const keys = Object.keys(given);
    if (keys.length === 2 && 'value' in given && 'mask' in given) return true;
    this.complain(
      name,
      `an object here has value and mask, not ${keys.join(', ') || 'nothing'}`,
      'Write { value: …, mask: … }.',
    );
    return false;
  }

  private address(name: FieldName, given: unknown): void {
    const { at, kind } = FIELDS[name];
    const masked = kind === 'mac' ? this.mac(name, given) : this.ip(name, given);
    if (masked === undefined) return;
    if (outside(masked.value, masked.mask)) {
      this.complain(name, 'the value has bits outside its mask', 'Clear them, or use a wider mask.');
      return;
    }
    this.value.set(masked.value, at);
    this.mask.set(masked.mask, at);
    if (kind === 'ip') {
      const family = masked.value.length === 4 ? 'ipv4' : 'ipv6';
      if (!this.families.has(family)) this.families.set(family, name);
    }
  }

  private mac(name: string, given: unknown): Masked | undefined {
    const one = (field: string, text: unknown) => {
      const bytes = typeof text === 'string' ? macBytes(text) : undefined;
      if (bytes === undefined)
        this.complain(
          field,
          `${describe(text)} is no MAC address`,
          'Write six bytes, such as "01:00:5e:01:01:07".',
        );
      return bytes;
    };
    if (!isObject(given)) {
      const value = one(name, given);
      return value === undefined ? undefined : { value, mask: new Uint8Array(6).fill(0xff) };
    }
    if (!this.pair(name, given)) return undefined;
    const value = one(`${name}.value`, given.value);
    const mask = one(`${name}.mask`, given.mask);
    return value === undefined || mask === undefined ? undefined : { value, mask };
  }

  private ip(name: string, given: unknown): Masked | undefined {
    if (isObject(given)) {
      if (!this.pair(name, given)) return undefined;
      const [value, mask] = [given.value, given.mask].map((one) =>
        typeof one === 'string' ? ipBytes(one) : undefined,
      );
      if (value !== undefined && mask !== undefined && value.length === mask.length) return { value, mask };
      this.complain(
        name,
        `${describe(given.value)} and ${describe(given.mask)} are not two addresses of one IP version`,
        'Write them like { value: 239.1.0.7, mask: 255.255.0.255 }.',
      );
      return undefined;
    }
    const found = typeof given === 'string' ? parseCidr(given) : 'is no IPv4 or IPv6 address';
    if (typeof found !== 'string') return found;
    this.complain(
      name,
      `${describe(given)} ${found}`,
      'Write an address, such as 239.1.1.7 or ff02::1, or a block, such as 10.0.0.0/8.',
    );
    return undefined;
  }

  /** Which IP version the rule is about. */
  private family(): 'ipv4' | 'ipv6' | undefined {
    const type =
      readNumber(this.mask, FIELDS.etherType) === 0xffff
        ? readNumber(this.value, FIELDS.etherType)
        : undefined;
    const given = this.fields.find((name) => ['trafficClass', 'hopLimit'].includes(name));
    const raw = this.fields.includes('protocol') && this.transport === undefined ? 'protocol' : given;
    if (this.fields.includes('ipFlags')) this.families.set('ipv4', this.families.get('ipv4') ?? 'ipFlags');
    if (this.fields.includes('flowLabel'))
      this.families.set('ipv6', this.families.get('ipv6') ?? 'flowLabel');
    if (this.families.size === 2) {
      this.complain(
        this.families.get('ipv6')!.split(' ')[0]!,
        `${this.families.get('ipv4')} is IPv4 and ${this.families.get('ipv6')} is IPv6, which no packet is at once`,
        'Make it two rules.',
      );
      return undefined;
    }
    const [family] = this.families.keys();
    const typed = type === ETHER_TYPE.ipv4 ? 'ipv4' : type === ETHER_TYPE.ipv6 ? 'ipv6' : undefined;
    if (type !== undefined && family !== undefined && family !== typed) {
      this.complain(
        'etherType',
        `etherType ${hex(type)} contradicts ${this.families.get(family)}, which is ${family === 'ipv4' ? 'IPv4' : 'IPv6'}`,
        `Use etherType: ${family}, or leave it out.`,
      );
      return undefined;
    }
    if (type !== undefined && typed === undefined && (raw !== undefined || this.transport !== undefined)) {
      this.complain(
        'etherType',
        `etherType ${hex(type)} is no IP, and ${raw ?? 'protocol'} is a field of IP`,
        `Leave out ${raw ?? 'protocol'} or etherType.`,
      );
      return undefined;
    }
    if (raw !== undefined && (family ?? typed) === undefined) {
      this.complain(
        raw,
        `${raw} is in IPv4 and in IPv6, and nothing says which is meant`,
        'Add etherType: ipv4 or ipv6.',
      );
    }
    return family ?? typed;
  }

  /** The headers that must be there (ibv_flow_spec of each), and what contradicts them. */
  private addHeaders(family: 'ipv4' | 'ipv6' | undefined): void {
    const has = (...names: readonly FieldName[]) => names.some((name) => this.fields.includes(name));
    if (has('ethernetDst', 'ethernetSource', 'etherType', 'vlan', 'vlanPriority')) this.need(LAYER.ETH);
    if (readNumber(this.mask, FIELDS.vlan) !== 0 || readNumber(this.mask, FIELDS.vlanPriority) !== 0)
      this.need(LAYER.VLAN);
    const inIp = has('dst', 'source', 'trafficClass', 'hopLimit', 'ipFlags', 'flowLabel');
    if (inIp || (has('protocol') && this.transport === undefined)) {
      if (family !== undefined) this.need(family === 'ipv4' ? LAYER.IPV4 : LAYER.IPV6);
    }
    if (this.transport !== undefined) this.need(this.transport === 'udp' ? LAYER.UDP : LAYER.TCP);
    const port = (['port', 'sourcePort'] as const).find((name) => has(name));
    if (port !== undefined && this.transport === undefined) {
      this.complain(
        port,
        `${port} is a field of UDP and TCP, and the rule does not say which`,
        "Add protocol: 'udp' or 'tcp'.",
      );
    }
    // VERBS 3: a fragment has no UDP or TCP header to match.
    if (
      this.transport !== undefined &&
      (readNumber(this.value, FIELDS.ipFlags) & IP_FLAG.MORE_FRAGMENTS) !== 0
    ) {
      this.complain(
        'ipFlags',
        `a fragment (more to come) has no ${this.transport.toUpperCase()} header that can be matched, so the rule never matches`,
        `To take fragments, use protocol: { value: ${PROTOCOL[this.transport]}, mask: 255 } without ports.`,
      );
    }
  }

  private need(layer: number): void {
    addLayers(this.value, layer);
    addLayers(this.mask, layer);
  }
}

const WORDS: Partial<Record<FieldName, Readonly<Record<string, number>>>> = {
  protocol: PROTOCOL,
  etherType: ETHER_TYPE,
};
const transportOf = (value: number): 'tcp' | 'udp' | undefined =>
  value === PROTOCOL.udp ? 'udp' : value === PROTOCOL.tcp ? 'tcp' : undefined;
const hex = (value: number): string => `0x${value.toString(16)}`;
