import type { ChannelReport, MemberReport, SubscriberReport } from '../index.js';

/**
 * What a member said of itself, with the right types: it came from another process, perhaps of a later version, so what is
 * missing or of another kind becomes empty, and the rest is still shown (I9).
 */
export function readReport(value: unknown): MemberReport | undefined {
  if (!isObject(value)) return undefined;
  return {
    channels: items(value.channels).map(readChannel),
    patterns: items(value.patterns).map((one) => ({
      pattern: text(one.pattern),
      listeners: number(one.listeners),
      overflow: readOverflow(one.overflow),
    })),
    peers: items(value.peers).map(readPeer),
    faults: number(value.faults),
    omitted: number(value.omitted),
  };
}

type Fields = Readonly<Record<string, unknown>>;

const isObject = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
const items = (value: unknown): Fields[] => (Array.isArray(value) ? value.filter(isObject) : []);
const text = (value: unknown): string => (typeof value === 'string' ? value : '?');
const number = (value: unknown): number => (typeof value === 'number' && Number.isFinite(value) ? value : 0);

const SENT = ['sent', 'datagrams', 'heartbeats', 'requests', 'repaired', 'evicted'] as const;
const REPAIRS = ['requests', 'repaired', 'givenUp', 'held'] as const;

function counts<K extends string>(fields: Fields, names: readonly K[]): Record<K, number> {
  return Object.fromEntries(names.map((name) => [name, number(fields[name])])) as Record<K, number>;
}

function readPeer(value: unknown): MemberReport['peers'][number] {
  const fields = isObject(value) ? value : {};
  return {
    name: text(fields.name),
    pid: number(fields.pid),
    incarnation: number(fields.incarnation),
  };
}

function readOverflow(value: unknown): SubscriberReport['overflow'] {
  if (isObject(value) && typeof value.latestBy === 'string') return { latestBy: value.latestBy };
  return text(value) as SubscriberReport['overflow'];
}

function readChannel(fields: Fields): ChannelReport {
  const { publishing } = fields;
  return {
    name: text(fields.name),
    codec: text(fields.codec),
    schema: typeof fields.schema === 'string' ? fields.schema : null,
    publishing: isObject(publishing)
      ? {
          sequence: number(publishing.sequence),
          bytes: number(publishing.bytes),
          refused: number(publishing.refused),
          encodeErrors: number(publishing.encodeErrors),
          dropped: number(publishing.dropped),
          ended: typeof publishing.ended === 'string' ? publishing.ended : null,
          subscribers: items(publishing.subscribers).map(readSubscriber),
          multicast: isObject(publishing.multicast) ? counts(publishing.multicast, SENT) : null,
        }
      : null,
    listeners: number(fields.listeners),
    received: number(fields.received),
    receivedBytes: number(fields.receivedBytes),
    missing: number(fields.missing),
    decodeErrors: number(fields.decodeErrors),
    publishers: items(fields.publishers).map(readPeer),
    multicast: isObject(fields.multicast) ? counts(fields.multicast, REPAIRS) : null,
  };
}

function readSubscriber(fields: Fields): SubscriberReport {
  return {
    peer: readPeer(fields.peer),
    overflow: readOverflow(fields.overflow),
    windowBytes: number(fields.windowBytes),
    outstandingBytes: number(fields.outstandingBytes),
    queuedBytes: number(fields.queuedBytes),
    queued: number(fields.queued),
    sentBytes: number(fields.sentBytes),
    delivered: number(fields.delivered),
    dropped: number(fields.dropped),
    credits: typeof fields.credits === 'number' ? fields.credits : null,
  };
}
