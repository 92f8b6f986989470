import type { Native } from '../../src/native/binding.js';
import type { OpenOptions } from '../../src/native/open-options.js';
import type { NativeBuffers } from '../../src/native/tables.js';

/** What a peer's `connect` needs. */
export interface Card {
  peer: number;
  incarnation: number;
  /** base64 */
  offer: string;
}

export declare const addonPath: string;
export declare const native: Native;

export declare function ownFabric(): {
  base: string;
  folder: string;
  leftovers(): string[];
  remove(): void;
};

export declare class Endpoint {
  constructor(folder: string, options?: Partial<OpenOptions>, addon?: Native);
  readonly native: Native;
  readonly incarnation: number;
  readonly handle: number;
  /** Tables and arena; these three are views of one piece of memory, and to be replaced together. */
  buffers: NativeBuffers;
  bytes: Uint8Array;
  view: DataView;
  readonly received: Map<number, { count: number; last: number }>;
  target: Uint8Array;
  head: number;
  disorder: number;
  refused: number;
  events: [kind: number, peer: number, a: number, b: number][];
  onTunnel: (peer: number, message: Uint8Array) => void;
  onRecord: (peer: number, payload: Uint8Array) => void;
  card(): Card;
  connect(peer: number, theirs: Card): void;
  send(peers: number[], payloadBytes: number, lane?: number): boolean;
  flush(): number;
  poll(frames?: number): number;
  close(): void;
}

export declare function link(a: Endpoint, b: Endpoint): [number, number];
export declare function openFiles(): number;
