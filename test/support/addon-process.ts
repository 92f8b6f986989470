import { fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import type { Card, Endpoint } from './addon.mjs';
import { DEADLINE_MS } from './waiters.js';

const program = join('test', 'integration', 'programs', 'addon-peer.mjs');

type Message =
  | { type: 'card'; card: Card }
  | { type: 'tunnel'; data: string }
  | { type: 'got'; count: number; disorder: number; events: number[][] };

/** How a member's process or worker ended. */
export interface End {
  code: number | null;
  signal: NodeJS.Signals | null;
}

/** What carries a member: a process or a worker. */
interface Carrier {
  post(message: object): void;
  listen(take: (message: Message) => void): void;
  readonly exited: Promise<End>;
  kill(signal: NodeJS.Signals): void;
  /** What it wrote to standard error, or the error that ended a worker. */
  words(): string;
}

function process_(folder: string, options: object, env: NodeJS.ProcessEnv): Carrier {
  const child = fork(program, [folder, JSON.stringify(options)], {
    env: { ...process.env, ...env },
    execArgv: [],
    stdio: ['ignore', 'inherit', 'pipe', 'ipc'],
  });
  let words = '';
  child.stderr?.on('data', (chunk) => {
    words += chunk;
  });
  return {
    post: (message) => child.connected && child.send(message, () => {}),
    listen: (take) => child.on('message', take),
    // 'close' comes when its streams have ended too.
    exited: once(child, 'close').then(([code, signal]) => ({ code, signal })),
    kill: (signal) => child.kill(signal),
    words: () => words,
  };
}

function worker_(folder: string, options: object): Carrier {
  const worker = new Worker(join(process.cwd(), program), { workerData: [folder, JSON.stringify(options)] });
  let words = '';
  worker.on('error', (error) => {
    words += error.stack;
  });
  return {
    post: (message) => worker.postMessage(message),
    listen: (take) => worker.on('message', take),
    exited: new Promise((resolve) => {
      worker.on('exit', (code) => resolve({ code, signal: null }));
    }),
    kill: () => void worker.terminate(),
    words: () => words,
  };
}

/** A member somewhere else (programs/addon-peer.mjs), connected with one of ours. */
export class RemotePeer {
  /** In a process of its own. Await `connected`. */
  static process(ours: Endpoint, folder: string, options: object = {}, env: NodeJS.ProcessEnv = {}) {
    return new RemotePeer(ours, process_(folder, options, env));
  }
  /** In a worker. Await `connected`. */
  static worker(ours: Endpoint, folder: string, options: object = {}) {
    return new RemotePeer(ours, worker_(folder, options));
  }

  readonly connected: Promise<void>;
  readonly exited: Promise<End>;
  /** Our index of it. */
  readonly peer: number;
  /** Its incarnation, once it is connected. */
  incarnation = 0;
  received = 0;
  disorder = 0;
  events: number[][] = [];
  ended = false;
  readonly #carrier: Carrier;

  private constructor(ours: Endpoint, carrier: Carrier) {
    this.#carrier = carrier;
    const card = ours.card();
    this.peer = card.peer;
    this.exited = carrier.exited.then((end) => {
      this.ended = true;
      return end;
    });
    const others = ours.onTunnel;
    ours.onTunnel = (peer, message) =>
      peer === this.peer
        ? carrier.post({ type: 'tunnel', data: Buffer.from(message).toString('base64') })
        : others(peer, message);
    this.connected = new Promise((resolve, reject) => {
      carrier.exited.then(() => reject(new Error(`it ended before it was connected: ${carrier.words()}`)));
      carrier.listen((message) => {
        if (message.type === 'card') {
          this.incarnation = message.card.incarnation;
          ours.connect(this.peer, message.card);
          carrier.post({ type: 'card', card });
          resolve();
        } else if (message.type === 'tunnel') {
          ours.native.tunnel(ours.handle, this.peer, Buffer.from(message.data, 'base64'));
        } else if (message.type === 'got') {
          this.received = message.count;
          this.disorder = message.disorder;
          this.events = message.events;
        }
      });
    });
  }

  /** Makes it send. */
  send(count: number, bytes: number) {
    this.#carrier.post({ type: 'send', count, bytes });
  }
  /** Makes it end in one of the ways that the program knows. */
  end(how: string) {
    this.#carrier.post({ type: 'end', how });
  }
  /** Signals the process; terminates a worker whatever the signal. */
  kill(signal: NodeJS.Signals = 'SIGKILL') {
    this.#carrier.kill(signal);
  }
  words() {
    return this.#carrier.words();
  }
}

/** Polls and flushes the endpoints, a loop turn each time, until it holds; fails at the deadline. */
export async function pumpUntil(
  endpoints: Endpoint[],
  holds: () => boolean,
  what: string,
  seconds = DEADLINE_MS / 1000,
): Promise<void> {
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

/** Sends `count` records to the peers, pumping `from` and the others when there is no room. */
export async function sendAll(
  from: Endpoint,
  peers: number[],
  count: number,
  bytes: number,
  others: Endpoint[] = [],
): Promise<void> {
  for (let i = 0; i < count; ) {
    if (from.send(peers, bytes)) i += 1;
    else await pumpUntil([from, ...others], () => true, 'room');
  }
  from.flush();
}
