import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { Card, Endpoint } from './addon.mjs';

type Message =
  | { type: 'card'; card: Card }
  | { type: 'tunnel'; data: string }
  | { type: 'got'; count: number; disorder: number; events: number[][] }
  | { type: 'sent' };

/** A member in another process (programs/addon-peer.mjs), connected with one of ours. */
export class RemotePeer {
  readonly child: ChildProcess;
  readonly exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  /** Our index of it. */
  readonly peer: number;
  received = 0;
  disorder = 0;
  events: number[][] = [];
  stderr = '';
  #connected!: () => void;
  readonly connected = new Promise<void>((resolve) => {
    this.#connected = resolve;
  });

  /** Starts the process; await `connected` (while nothing needs to be pumped). */
  constructor(
    readonly ours: Endpoint,
    folder: string,
    {
      env = {},
      options = {},
      execArgv = [],
    }: { env?: NodeJS.ProcessEnv; options?: object; execArgv?: string[] } = {},
  ) {
    const card = ours.card();
    this.peer = card.peer;
    const program = join('test', 'integration', 'programs', 'addon-peer.mjs');
    this.child = fork(program, [folder, JSON.stringify(options)], {
      env: { ...process.env, ...env },
      execArgv,
      stdio: ['ignore', 'inherit', 'pipe', 'ipc'],
    });
    this.child.stderr?.on('data', (chunk) => {
      this.stderr += chunk;
    });
    this.exited = once(this.child, 'exit').then(([code, signal]) => ({ code, signal }));
    const others = ours.onTunnel;
    ours.onTunnel = (peer, message) =>
      peer === this.peer
        ? this.#tell({ type: 'tunnel', data: Buffer.from(message).toString('base64') })
        : others(peer, message);
    this.child.on('message', (message: Message) => {
      if (message.type === 'card') {
        ours.connect(this.peer, message.card);
        this.#tell({ type: 'card', card });
        this.#connected();
      } else if (message.type === 'tunnel') {
        ours.native.tunnel(ours.handle, this.peer, Buffer.from(message.data, 'base64'));
      } else if (message.type === 'got') {
        this.received = message.count;
        this.disorder = message.disorder;
        this.events = message.events;
      }
    });
  }

  #tell(message: object) {
    if (this.child.connected) this.child.send(message, () => {});
  }
  /** Makes it send. */
  send(count: number, bytes: number) {
    this.#tell({ type: 'send', count, bytes });
  }
  /** Makes it end in one of the ways that the program knows. */
  end(how: string) {
    this.#tell({ type: 'end', how });
  }
}

/** Polls and flushes the endpoints, a loop turn each time, until it holds; fails at the deadline. */
export async function pumpUntil(endpoints: Endpoint[], holds: () => boolean, what: string, seconds = 30) {
  const deadline = Date.now() + seconds * 1000;
  while (true) {
    for (const endpoint of endpoints) {
      endpoint.poll();
      endpoint.flush();
    }
    if (holds()) return;
    if (Date.now() > deadline) throw new Error(`not within ${seconds} s: ${what}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Sends `count` records to the peers, pumping when there is no room. */
export async function sendAll(
  from: Endpoint,
  peers: number[],
  count: number,
  bytes: number,
  others: Endpoint[] = [],
) {
  for (let i = 0; i < count; ) {
    if (from.send(peers, bytes)) i += 1;
    else await pumpUntil([from, ...others], () => true, 'room');
  }
  from.flush();
}
