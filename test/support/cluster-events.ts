import type { ClusterEvents, DownReason, PeerInfo } from '../../src/cluster/cluster.js';
import { Waiters } from './waiters.js';

/** What a cluster told. */
export type Told =
  | { kind: 'up'; peer: PeerInfo }
  | { kind: 'down'; peer: PeerInfo; why: DownReason; detail: string | undefined }
  | { kind: 'suspect'; peer: PeerInfo; on: boolean }
  | { kind: 'message'; peer: PeerInfo; type: string; body: unknown }
  | { kind: 'fault'; error: Error };

/** Records the events of a cluster, and waits for them. */
export class Recorder implements ClusterEvents {
  readonly told: Told[] = [];
  /** Called with each event, before the waiters. */
  react: (event: Told) => void = () => {};
  inspection: unknown = null;
  private readonly waiters = new Waiters();

  peerUp(peer: PeerInfo): void {
    this.add({ kind: 'up', peer });
  }
  peerDown(peer: PeerInfo, why: DownReason, detail?: string): void {
    this.add({ kind: 'down', peer, why, detail });
  }
  peerSuspect(peer: PeerInfo, on: boolean): void {
    this.add({ kind: 'suspect', peer, on });
  }
  message(peer: PeerInfo, type: string, body: unknown): void {
    this.add({ kind: 'message', peer, type, body });
  }
  fault(error: Error): void {
    this.add({ kind: 'fault', error });
  }
  onInspect(): unknown {
    return this.inspection;
  }

  /** Events of one kind. */
  of<K extends Told['kind']>(kind: K): Extract<Told, { kind: K }>[] {
    return this.told.filter((event): event is Extract<Told, { kind: K }> => event.kind === kind);
  }

  get bodies(): unknown[] {
    return this.of('message').map((event) => event.body);
  }

  /** Resolves once the condition holds, which is looked at after each event. */
  until(what: string, condition: () => boolean): Promise<void> {
    const shown = (_: string, value: unknown) => (value instanceof Error ? value.message : value);
    return this.waiters.until(what, condition, () =>
      this.told
        .slice(-8)
        .map((event) => JSON.stringify(event, shown))
        .join('\n'),
    );
  }

  private add(event: Told): void {
    this.told.push(event);
    this.react(event);
    this.waiters.look();
  }
}
