import * as net from 'node:net';
import { join } from 'node:path';
import { type ControlMessage, encodeFrame, FrameDecoder } from '../../src/cluster/framing.js';
import { socketName } from '../../src/cluster/paths.js';
import { Registration } from '../../src/cluster/registry.js';
import type { ClusterNative } from './cluster-native.js';
import { dropLock } from './cluster-native.js';
import { Waiters } from './waiters.js';

/** One connection of a puppet. */
export class Strings {
  readonly received: ControlMessage[] = [];
  ended = false;
  private readonly waiters = new Waiters();

  constructor(readonly socket: net.Socket) {
    const decoder = new FrameDecoder();
    socket.on('data', (chunk) => {
      decoder.push(chunk, (message) => this.received.push(message));
      this.waiters.look();
    });
    socket.on('error', () => {});
    socket.on('close', () => {
      this.ended = true;
      this.waiters.look();
    });
  }

  send(message: ControlMessage): void {
    this.socket.write(encodeFrame(message));
  }

  /** The first message of a type. */
  async next(type: string): Promise<ControlMessage> {
    await this.until(`a ${type}`, () => this.received.some((message) => message.type === type));
    return this.received.find((message) => message.type === type)!;
  }

  over(): Promise<void> {
    return this.until('the end of the connection', () => this.ended);
  }

  until(what: string, condition: () => boolean): Promise<void> {
    return this.waiters.until(what, condition, () => JSON.stringify(this.received).slice(0, 2000));
  }
}

/** A member that does what the test says: registered, listening, and otherwise passive. */
export class Puppet {
  readonly connections: Strings[] = [];
  private readonly arrivals: ((strings: Strings) => void)[] = [];

  private constructor(
    readonly registration: Registration,
    private readonly server: net.Server,
    readonly native: ClusterNative,
  ) {
    server.on('connection', (socket) => {
      const strings = new Strings(socket);
      this.connections.push(strings);
      this.arrivals.shift()?.(strings);
    });
  }

  static async join(native: ClusterNative, base: string, domain: string): Promise<Puppet> {
    const registration = Registration.stage(native, base, domain, { pid: 1, name: 'puppet', started: 0 });
    const server = net.createServer();
    const puppet = new Puppet(registration, server, native);
    await new Promise<void>((resolve) => {
      server.listen({ path: registration.socketAddress(registration.incarnation), exclusive: true }, resolve);
    });
    registration.publish();
    return puppet;
  }

  get incarnation(): number {
    return this.registration.incarnation;
  }

  /** The next connection that somebody makes to it. */
  arrival(): Promise<Strings> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error('nobody connected to the puppet')), 10_000);
      this.arrivals.push((strings) => {
        clearTimeout(timer);
        resolve(strings);
      });
    });
  }

  connect(incarnation: number): Strings {
    return new Strings(net.connect({ path: join(this.registration.folder, socketName(incarnation)) }));
  }

  /** A greeting with everything right, but for what is given. */
  greeting(type: 'hello' | 'welcome', part: Record<string, unknown> = {}): ControlMessage {
    return {
      type,
      v: 1,
      incarnation: this.incarnation,
      name: 'puppet',
      pid: 1,
      offer: Buffer.from(`offer ${this.incarnation}`).toString('base64'),
      session: 1,
      established: type === 'welcome' ? 1 : 0,
      received: 0,
      ...(type === 'hello' ? { yourSession: 0 } : {}),
      ...part,
    };
  }

  /** What SIGKILL does: lock and sockets go, the files stay. */
  kill(): void {
    dropLock(join(this.registration.folder, `m-${this.incarnation}.lock`));
    for (const { socket } of this.connections) socket.destroy();
  }

  /** Takes everything away. */
  close(): void {
    for (const { socket } of this.connections) socket.destroy();
    this.server.close();
    this.registration.remove();
  }
}
