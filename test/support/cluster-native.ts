import * as fs from 'node:fs';
import type { Native, NativeResources } from '../../src/native/binding.js';
import type { NativeProbe } from '../../src/native/devices.js';
import type { OpenOptions } from '../../src/native/open-options.js';
import type { NativeBuffers } from '../../src/native/tables.js';
import { NoLending } from './no-lending.js';
import { noRegions } from './no-regions.js';

/** What a call of the fake was. */
export interface Call {
  readonly call: 'open' | 'close' | 'offer' | 'connect' | 'disconnect' | 'tunnel';
  readonly handle: number;
  readonly peer?: number;
  readonly detail?: unknown;
}

/** Locks by path, shared by every fake: they are the kernel's. A lock belongs to a file, so it ends when the file is replaced. */
const locks = new Map<string, number>();
let tokens = 0;

const failure = (code: string, what: string, detail: string) =>
  Object.assign(new Error(detail), { code, what, detail });

/** The parts of the addon that the cluster uses, in memory. `fail` makes the next call of that name throw. */
export class ClusterNative extends NoLending implements Native {
  readonly abi = 1;
  readonly fabricLayout = '1.0';
  readonly calls: Call[] = [];
  readonly fail = new Map<string, Error>();
  private handles = 0;
  private readonly open_ = new Map<number, { options: OpenOptions; peers: Set<number> }>();

  private maybeFail(name: string): void {
    const error = this.fail.get(name);
    if (error === undefined) return;
    this.fail.delete(name);
    throw error;
  }

  open(options: OpenOptions): number {
    this.maybeFail('open');
    this.handles += 1;
    this.open_.set(this.handles, { options, peers: new Set() });
    fs.writeFileSync(`${options.folder}/i-${options.incarnation}.0`, 'inbox');
    this.calls.push({ call: 'open', handle: this.handles });
    return this.handles;
  }

  close(handle: number): void {
    const member = this.open_.get(handle);
    if (member === undefined) return;
    this.open_.delete(handle);
    fs.rmSync(`${member.options.folder}/i-${member.options.incarnation}.0`, { force: true });
    this.calls.push({ call: 'close', handle });
  }

  offer(handle: number): { peer: number; offer: Uint8Array } {
    this.maybeFail('offer');
    const member = this.member(handle);
    let peer = 0;
    while (member.peers.has(peer)) peer += 1;
    member.peers.add(peer);
    this.calls.push({ call: 'offer', handle, peer });
    return { peer, offer: Buffer.from(`offer ${member.options.incarnation}`) };
  }

  connect(handle: number, peer: number, incarnation: number, offer: Uint8Array): void {
    this.maybeFail('connect');
    const member = this.member(handle);
    if (!member.peers.has(peer)) throw failure('EINVAL', 'connect', `peer ${peer} is not reserved`);
    if (Buffer.from(offer).toString() !== `offer ${incarnation}`)
      throw failure('EPROTO', 'connect', 'the offer is bad');
    this.calls.push({ call: 'connect', handle, peer, detail: incarnation });
  }

  disconnect(handle: number, peer: number): void {
    this.member(handle).peers.delete(peer);
    this.calls.push({ call: 'disconnect', handle, peer });
  }

  tunnel(handle: number, peer: number, message: Uint8Array): void {
    this.member(handle);
    this.calls.push({ call: 'tunnel', handle, peer, detail: Buffer.from(message).toString('hex') });
  }

  createRegion = noRegions.createRegion;
  openRegion = noRegions.openRegion;
  regionBuffer = noRegions.regionBuffer;
  regionState = noRegions.regionState;
  closeRegion = noRegions.closeRegion;
  isElsewhere = noRegions.isElsewhere;
  fetch = noRegions.fetch;
  cancelFetch = noRegions.cancelFetch;
  inspectRegion = noRegions.inspectRegion;
  sweepRegions = noRegions.sweepRegions;

  lockPresence(path: string): number {
    this.maybeFail('lockPresence');
    const descriptor = fs.openSync(path, 'a', 0o600);
    const inode = fs.fstatSync(descriptor).ino;
    fs.closeSync(descriptor);
    const key = String(inode);
    if (locks.has(key)) throw failure('EAGAIN', 'lock', `${path} is held`);
    tokens += 1;
    locks.set(key, tokens);
    return tokens;
  }

  isPresent(path: string): boolean {
    const found = fs.statSync(path, { throwIfNoEntry: false });
    return found !== undefined && locks.has(String(found.ino));
  }

  unlockPresence(token: number): void {
    for (const [key, held] of locks) if (held === token) locks.delete(key);
  }

  memlockLimit(): number {
    return Infinity;
  }

  cleanFabric(): { reaped: number; bytes: number } {
    return { reaped: 0, bytes: 0 };
  }

  probe(): NativeProbe {
    return { library: '', libraryProblem: '', noSystemDevice: '', memlock: Infinity, devices: [] };
  }

  /** Peers that a member holds something for. */
  reserved(handle: number): number {
    return this.open_.get(handle)?.peers.size ?? 0;
  }

  private member(handle: number) {
    const member = this.open_.get(handle);
    if (member === undefined) throw failure('ECLOSED', 'handle', `handle ${handle} is closed`);
    return member;
  }

  buffers(): NativeBuffers {
    throw new Error('not used');
  }
  openLane(): number {
    throw new Error('not used');
  }
  closeLane(): void {}
  openGroup(): { group: number; room: number } {
    throw new Error('not used');
  }
  closeGroup(): void {}
  flush(): number {
    return 0;
  }
  poll(): number {
    return 0;
  }
  linger(): number {
    return 0;
  }
  arm(): boolean {
    return true;
  }
  watch(): void {}
  sleep(): void {}
  ref(): void {}
  resources(): NativeResources {
    throw new Error('not used');
  }
}

/** A kill: the locks of a folder's member become free, as the kernel does it. */
export function dropLock(path: string): void {
  const found = fs.statSync(path, { throwIfNoEntry: false });
  if (found !== undefined) locks.delete(String(found.ino));
}
