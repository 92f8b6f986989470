import { join, type Overflow, type PatternMessage } from '../index.js';
import { anyOf, type Context } from './context.js';
import { noteDevice } from './device.js';
import { EXIT, show } from './exit.js';
import type { CommonOptions } from './options.js';
import { toJson, toText } from './render.js';

/** Options of `millrace sub`. */
export interface SubOptions extends CommonOptions {
  readonly count?: number;
  readonly jsonl?: boolean;
  readonly overflow: Overflow;
  readonly replay: number;
  readonly name?: string;
}

const NEWLINE = Buffer.from('\n');

/**
 * `millrace sub PATTERN`: prints what is published. It takes messages as fast as standard output is read; what publishers do
 * meanwhile is `--overflow`.
 */
export async function sub(text: string, options: SubOptions, { io, interrupted }: Context): Promise<number> {
  const stop = anyOf(interrupted, io.closed);
  const { signal } = stop;
  const member = await join(options.domain, { name: options.name ?? `millrace-sub-${process.pid}`, signal });
  noteDevice(member, io);
  const timer =
    options.timeout === undefined ? undefined : setTimeout(() => stop.abort(), Math.max(1, options.timeout));
  let received = 0;
  try {
    const pattern = member.pattern<unknown>(text, { overflow: options.overflow, replay: options.replay });
    pattern.status$.subscribe((event) => {
      if (event.type === 'gap') {
        const { peer, channel, from, to, count, reason } = event;
        const range = from === to ? `message ${from}` : `messages ${from} to ${to} (${count})`;
        io.note(
          `${range} of ${JSON.stringify(channel)} from ${peer.name} (pid ${peer.pid}) missing: ${reason}`,
        );
      } else if (event.type === 'mismatch' || event.type === 'decode-error') io.error(show(event.error));
    });
    const print = printer(text, options);
    try {
      for await (const message of pattern.values({ signal })) {
        for (const part of print(message)) await io.write(part);
        received += 1;
        if (received === options.count || signal.aborted) break;
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  } finally {
    clearTimeout(timer);
    await member.leave();
  }
  if (io.closed.aborted || interrupted.aborted) return EXIT.OK;
  if (received === 0 && options.count !== 0) return EXIT.NOTHING;
  return options.count !== undefined && received < options.count ? EXIT.FAILED : EXIT.OK;
}

/** How a message is printed: pieces that are written one after the other. */
function printer(
  text: string,
  { json, jsonl }: SubOptions,
): (message: PatternMessage<unknown>) => readonly (string | Uint8Array)[] {
  if (json) {
    return ({ channel, publisher, sequence, time, value }) => {
      const { name, pid, incarnation } = publisher;
      const head = JSON.stringify({ channel, publisher: { name, pid, incarnation }, sequence, time });
      return [`${head.slice(0, -1)},"value":${toJson(value)}}\n`];
    };
  }
  if (jsonl) return ({ value }) => [`${toJson(value)}\n`];
  // With a wildcard the channel is part of the answer.
  const many = /[*>]/.test(text);
  return ({ channel, value }) => {
    const shown = toText(value);
    const prefix = many ? `${channel}\t` : '';
    return typeof shown === 'string' ? [`${prefix}${shown}\n`] : [prefix, shown, NEWLINE];
  };
}
