import { invalidArgument } from '../suggest.js';
import { macText, maskedIpText } from './addresses.js';
import { FIELDS, type Field, type FieldName, LAYER, layersOf, readNumber } from './fields.js';
import { type Mismatch, mismatches } from './match.js';
import { type Packet, packetAddress, packetText } from './packet.js';
import { called, type Rule } from './rule.js';
import { decide } from './winners.js';

/** What one rule does with a packet, and why. */
export interface RuleVerdict {
  readonly rule: Rule;
  /** `taken`: a copy goes to its channel; `counted`: it goes on; `dropped`: nobody gets it; `lost`: it matches, and another rule has it. */
  readonly outcome: 'taken' | 'counted' | 'dropped' | 'lost' | 'no-match';
  /** In words. */
  readonly why: string;
}

/** What happens to a packet. */
export interface Explanation {
  readonly packet: Packet;
  /** The packet in one line. */
  readonly text: string;
  /** Every rule once, in the order of the set. */
  readonly verdicts: readonly RuleVerdict[];
}

/**
 * Which rules take a packet, and why each of the others does not. Pure.
 * @param rules as checkRules() or `steering.rules` gives them
 * @param packet as decodePacket() gives it
 * @throws MillraceTypeError ERR_INVALID_ARGUMENT
 */
export function explain(rules: readonly Rule[], packet: Packet): Explanation {
  if (!Array.isArray(rules)) invalidArgument('explain()', 'the rules', rules, 'an array');
  if (!(packet?.headers instanceof Uint8Array))
    invalidArgument('explain()', 'the packet', packet, 'what decodePacket() returns');
  const why = new Map(rules.map((rule) => [rule, mismatches(rule, packet)]));
  const { takers, sniffers, droppedBy, losers } = decide(rules.filter((rule) => why.get(rule)!.length === 0));
  const verdicts = rules.map((rule): RuleVerdict => {
    const missing = why.get(rule)!;
    if (missing.length > 0) {
      const reasons = missing.filter((one) => !hidden(one, missing)).map((one) => reason(one, rule, packet));
      return { rule, outcome: 'no-match', why: [...new Set(reasons)].join('; ') };
    }
    if (rule === droppedBy) return { rule, outcome: 'dropped', why: 'it matches first, and drops' };
    if (takers.includes(rule) || sniffers.includes(rule)) {
      if (rule.action === 'count')
        return { rule, outcome: 'counted', why: 'it only counts; the packet goes on' };
      return { rule, outcome: 'taken', why: takenWhy(rule, takers) };
    }
    return { rule, outcome: 'lost', why: lostWhy(rule, losers.get(rule)!) };
  });
  return { packet, text: packetText(packet), verdicts };
}

function takenWhy(rule: Rule, takers: readonly Rule[]): string {
  if (rule.type === 'sniffer') return 'a sniffer gets a copy of everything';
  if (rule.type !== 'normal') return 'no normal rule takes it';
  const [first] = takers;
  if (first === rule) return `the strongest that matches (priority ${rule.priority})`;
  if (first!.dontTrap && first!.priority <= rule.priority) return `${called(first!)} lets it go on`;
  return `it matches the same as ${called(first!)}, so both get a copy`;
}

function lostWhy(rule: Rule, winner: Rule): string {
  const verb = winner.action === 'drop' ? 'drops it' : 'takes it';
  if (winner.type === 'normal' && rule.type !== 'normal')
    return `a default comes after every normal rule, and ${called(winner)} ${verb}`;
  if (winner.priority < rule.priority)
    return `${called(winner)} ${verb} first (priority ${winner.priority} is stronger than ${rule.priority})`;
  if (winner.action === 'drop') return `${called(winner)} drops it`;
  if (
    typeof winner.action === 'object' &&
    typeof rule.action === 'object' &&
    winner.action.to.name === rule.action.to.name
  )
    return `its channel has a copy already, by ${called(winner)}`;
  return `${called(winner)} matches at the same priority ${rule.priority}, differently, and comes first`;
}

/** What is in a header that is not there needs no word of its own. */
function hidden(one: Mismatch, missing: readonly Mismatch[]): boolean {
  const lacks = (...headers: readonly Mismatch[]) => headers.some((header) => missing.includes(header));
  if (one === 'port' || one === 'sourcePort') return lacks('udp', 'tcp');
  const inIp: readonly Mismatch[] = [
    'dst',
    'source',
    'protocol',
    'trafficClass',
    'hopLimit',
    'ipFlags',
    'flowLabel',
  ];
  return inIp.includes(one) && lacks('ipv4', 'ipv6');
}

const LAYER_NAMES: Partial<Record<Mismatch, string>> = { ipv4: 'IPv4', ipv6: 'IPv6', udp: 'UDP', tcp: 'TCP' };

function reason(missing: Mismatch, { match }: Rule, packet: Packet): string {
  switch (missing) {
    case 'interface':
      return `it came in on ${packet.interface}, not ${match.interface}`;
    case 'multicast':
      return 'its destination MAC address is not multicast';
    case 'udp':
    case 'tcp':
      return packet.fragment
        ? `it is a fragment, which has no ${LAYER_NAMES[missing]} header to match`
        : `it is not ${LAYER_NAMES[missing]}`;
    case 'ipv4':
    case 'ipv6':
      return `it is not ${LAYER_NAMES[missing]}`;
    default:
      break;
  }
  const field: Field = FIELDS[missing];
  const untagged = (layersOf(packet.headers) & LAYER.VLAN) === 0;
  if ((missing === 'vlan' || missing === 'vlanPriority') && untagged) return 'it has no VLAN tag';
  return `${missing} is ${show(missing, packet)}, not ${wanted(missing, field, match)}`;
}

function show(name: FieldName, packet: Packet): string {
  const field: Field = FIELDS[name];
  if (field.kind === 'mac') return macText(packet.headers.subarray(field.at, field.at + 6));
  if (field.kind === 'ip') return packetAddress(packet, name as 'dst' | 'source') ?? 'none';
  return number(name, readNumber(packet.headers, field));
}

function wanted(name: FieldName, field: Field, { value, mask, family }: Rule['match']): string {
  if (field.kind === 'ip') {
    const bytes = family === 'ipv4' ? 4 : 16;
    const [part, bits] = [value, mask].map((all) => all.subarray(field.at, field.at + bytes));
    return maskedIpText({ value: part!, mask: bits! });
  }
  if (field.kind === 'mac') {
    const [part, bits] = [value, mask].map((all) => macText(all.subarray(field.at, field.at + 6)));
    return bits === 'ff:ff:ff:ff:ff:ff' ? part! : `${part} mask ${bits}`;
  }
  const bits = readNumber(mask, field);
  const shown = number(name, readNumber(value, field));
  return bits === 2 ** field.bits - 1 ? shown : `${shown} mask ${number(name, bits)}`;
}

const number = (name: FieldName, value: number): string =>
  name === 'etherType' || name === 'flowLabel' ? `0x${value.toString(16).padStart(4, '0')}` : String(value);
