import { addAbortSignal } from 'node:stream';
import type { Channel, DrainReport } from '../index.js';
import { join } from '../index.js';
import { anyOf, type Context } from './context.js';
import { noteDevice } from './device.js';
import { EXIT, Outcome, show } from './exit.js';
import { LineSplitter } from './lines.js';
import type { CommonOptions } from './options.js';

/** Options of `millrace pub`. */
export interface PubOptions extends CommonOptions {
  readonly jsonl?: boolean;
  readonly codec: 'msgpackr' | 'json' | 'bytes';
  readonly waitSubscribers: number;
  readonly replay: number;
  readonly name?: string;
}

/** The longest line that is read at all; whether it fits a message is for the channel to say. */
const MAX_LINE = 1024 * 1024;
/** How long to wait for subscribers to take the rest, unless --timeout says. */
const DRAIN_MS = 5000;
/** How long to look for subscribers when none is waited for. */
const MOMENT_MS = 250;
/** Errors of lines that are shown one by one; the others are counted. */
const MAX_SHOWN = 10;

/** What became of the input. */
interface Summary {
  readonly channel: string;
  /** Lines that were published. */
  published: number;
  /** Of these, lines that were published while nobody subscribed. */
  unheard: number;
  /** Lines that were not published. */
  failed: number;
  /** Per subscriber and range: published, but not known to be delivered. */
  undelivered: DrainReport['undelivered'];
}

/**
 * `millrace pub CHANNEL`: publishes each line of standard input. Reads no faster than subscribers take, so what waits is
 * bounded by the channel's queues and one chunk of input.
 */
export async function pub(name: string, options: PubOptions, { io, interrupted }: Context): Promise<number> {
  const stop = anyOf(interrupted, io.closed);
  const { signal } = stop;
  const member = await join(options.domain, { name: options.name ?? `millrace-pub-${process.pid}`, signal });
  noteDevice(member, io);
  const summary: Summary = { channel: name, published: 0, unheard: 0, failed: 0, undelivered: [] };
  try {
    const channel = member.channel<unknown>(name, { codec: options.codec as 'json', replay: options.replay });
    let subscribers = 0;
    channel.status$.subscribe((event) => {
      if (event.type === 'subscriber-joined' || event.type === 'subscriber-left')
        subscribers = event.subscribers;
      else if (event.type === 'mismatch') io.error(show(event.error));
    });
    await untilHeard(channel, options, signal, io);
    const splitter = new LineSplitter(MAX_LINE);
    let number = 0;
    const fail = (message: string) => {
      summary.failed += 1;
      if (summary.failed <= MAX_SHOWN) io.note(`line ${number} was not published: ${message}`);
      else if (summary.failed === MAX_SHOWN + 1)
        io.note('further lines that are not published are counted only');
    };
    const take = async (lines: Iterable<Uint8Array | { readonly bytes: number }>): Promise<void> => {
      for (const line of lines) {
        number += 1;
        if (!(line instanceof Uint8Array)) {
          fail(`it has ${line.bytes} bytes, and at most ${MAX_LINE} are read`);
          continue;
        }
        let value: unknown;
        try {
          value = read(line, options);
        } catch (error) {
          fail(`it is not JSON: ${(error as Error).message}`);
          continue;
        }
        // A publisher without a subscriber sends nothing; with replay it keeps what comes.
        const alone = subscribers === 0 && options.replay === 0;
        try {
          if (!channel.offer(value)) await insist(channel, value, signal);
          summary.published += 1;
          if (alone) summary.unheard += 1;
        } catch (error) {
          if (signal.aborted) return;
          fail((error as Error).message);
        }
      }
    };
    const input = addAbortSignal(signal, io.streams.stdin);
    try {
      for await (const chunk of input) {
        await take(splitter.push(typeof chunk === 'string' ? Buffer.from(chunk) : (chunk as Uint8Array)));
        if (signal.aborted) break;
      }
      await take(splitter.end());
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    // After a signal only what can be sent at once is sent: whoever pressed Ctrl-C does not want to wait.
    const report = await channel.drain(signal.aborted ? 0 : { timeout: options.timeout ?? DRAIN_MS, signal });
    summary.undelivered = report.undelivered;
  } finally {
    await member.leave();
  }
  if (interrupted.aborted) return EXIT.OK;
  tell(summary, options, io);
  return summary.failed > 0 || summary.undelivered.length > 0 ? EXIT.FAILED : EXIT.OK;
}

/** Waits for subscribers, with a word to say so if it takes long. */
async function untilHeard(
  channel: Channel<unknown>,
  { waitSubscribers: wanted, timeout, domain }: PubOptions,
  signal: AbortSignal,
  io: Context['io'],
): Promise<void> {
  if (wanted === 0) {
    // Those who subscribe already need a moment to be heard of.
    await channel.ready({ subscribers: 1, timeout: MOMENT_MS, signal }).catch(() => {});
    return;
  }
  const hint = setTimeout(() => {
    const who = wanted === 1 ? 'a subscriber' : `${wanted} subscribers`;
    io.note(`waiting for ${who} of ${JSON.stringify(channel.name)} in the domain ${JSON.stringify(domain)}`);
  }, 1000);
  try {
    await channel.ready({ subscribers: wanted, timeout: timeout ?? Number.POSITIVE_INFINITY, signal });
  } catch (error) {
    if (signal.aborted) return;
    const { code, message } = error as { code?: string; message: string };
    if (code === 'ERR_TIMEOUT') throw new Outcome(EXIT.NOTHING, message, code);
    throw error;
  } finally {
    clearTimeout(hint);
  }
}

/** A line as the value that is published. */
function read(line: Uint8Array, { jsonl, codec }: PubOptions): unknown {
  if (codec === 'bytes') return line;
  const text = Buffer.from(line.buffer, line.byteOffset, line.byteLength).toString('utf8');
  return jsonl ? JSON.parse(text) : text;
}

/** Publishes a value that was refused: waits for room as often as that is the reason. */
async function insist(channel: Channel<unknown>, value: unknown, signal: AbortSignal): Promise<void> {
  for (;;) {
    try {
      await channel.publish(value);
      return;
    } catch (error) {
      const { code } = error as { code?: string };
      // It was sent, and whoever was lost is in the report at the end.
      if (code === 'ERR_PEER_LOST') return;
      if (code !== 'ERR_REFUSED') throw error;
    }
    await channel.whenWritable(signal);
    // A turn in between, whatever the answer: room is made by what the event loop does.
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function tell(summary: Summary, { json }: PubOptions, io: Context['io']): void {
  for (const { peer, channel, from, to, count, reason, ambiguous } of summary.undelivered) {
    const range = from === to ? `message ${from}` : `messages ${from} to ${to} (${count})`;
    io.note(
      `${range} of ${JSON.stringify(channel)} did not reach ${peer.name} (pid ${peer.pid}): ${reason}` +
        `${ambiguous ? ', part of it may have' : ''}`,
    );
  }
  if (summary.unheard > 0) {
    io.note(`${summary.unheard} of ${summary.published} lines were published while nobody subscribed`);
  }
  if (summary.failed > MAX_SHOWN) io.note(`${summary.failed} lines were not published`);
  if (json) void io.line(JSON.stringify(summary));
}
