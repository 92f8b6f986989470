/** The cluster in memory: members of a domain that see each other, with messages in order and deaths that are noticed. */
import type { ClusterPort } from '../../src/channels/engine.js';
import type { ClusterEvents, PeerInfo } from '../../src/cluster/cluster.js';
import type { Native } from '../../src/native/binding.js';
import type { FakeFabric } from './fake-native.js';
import type { Life } from './world.js';

interface Entry {
  readonly life: Life;
  readonly incarnation: number;
  readonly name: string;
  readonly native: Native;
  readonly handle: number;
  readonly events: ClusterEvents;
  readonly peers: Map<number, { info: PeerInfo; entry: Entry }>;
  left: boolean;
  held: boolean;
  /** What its control connections do not bring for the time being, oldest first; null when they work. */
  delayed: (() => void)[] | null;
}

let nextIncarnation = 1000;

export class FakeDomain {
  readonly entries: Entry[] = [];
  /** Messages that were sent, for assertions. */
  readonly log: { from: string; to: string; type: string; body: unknown }[] = [];

  constructor(
    readonly fabric: FakeFabric,
    readonly schedule: (owner: Life, run: () => void) => void,
  ) {}

  async join(
    life: Life,
    given: {
      name: string;
      native: Native;
      handleOptions: Omit<Parameters<Native['open']>[0], 'folder' | 'incarnation'>;
      events: ClusterEvents;
    },
  ): Promise<ClusterPort> {
    const incarnation = nextIncarnation++;
    const handle = given.native.open({ ...given.handleOptions, folder: '/fake', incarnation });
    const entry: Entry = {
      life,
      incarnation,
      name: given.name,
      native: given.native,
      handle,
      events: given.events,
      peers: new Map(),
      left: false,
      held: false,
      delayed: null,
    };
    for (const other of this.entries)
      if (!other.left && other.life.state !== 'dead') this.#connect(entry, other);
    this.entries.push(entry);
    return this.#port(entry);
  }

  portOf(incarnation: number): ClusterPort | undefined {
    const entry = this.entries.find((one) => one.incarnation === incarnation);
    return entry === undefined ? undefined : this.#port(entry);
  }

  tunnelTo(incarnation: number, bytes: Uint8Array): void {
    const entry = this.entries.find((one) => one.incarnation === incarnation);
    if (entry !== undefined) this.schedule(entry.life, () => entry.native.tunnel(entry.handle, 0, bytes));
  }

  killed(life: Life): void {
    for (const entry of this.entries) if (entry.life === life && !entry.left) this.#gone(entry, 'died');
  }

  /** What a member sends on its control connections stays where it is, until `hasten`; only its end is noticed. */
  delay(incarnation: number): void {
    const entry = this.entries.find((one) => one.incarnation === incarnation);
    if (entry !== undefined) entry.delayed ??= [];
  }

  /** The oldest `count` of the delayed messages arrive, all of them by default, and then they are not delayed any more. */
  hasten(incarnation: number, count = Number.POSITIVE_INFINITY): void {
    const entry = this.entries.find((one) => one.incarnation === incarnation);
    for (const arrive of entry?.delayed?.splice(0, count) ?? []) arrive();
    if (entry !== undefined && count === Number.POSITIVE_INFINITY) entry.delayed = null;
  }

  /** Both end their session and begin anew, as after a backlog that was not read: the same incarnations, new peers. */
  reconnect(a: number, b: number): void {
    const [one, other] = [a, b].map(
      (incarnation) => this.entries.find((e) => e.incarnation === incarnation)!,
    );
    for (const [mine, theirs] of [
      [one!, other!],
      [other!, one!],
    ] as const) {
      for (const [index, { info, entry }] of mine.peers) {
        if (entry !== theirs) continue;
        mine.peers.delete(index);
        this.schedule(mine.life, () => {
          mine.events.peerDown(info, 'refused', 'it did not read');
          mine.native.disconnect(mine.handle, index);
        });
      }
    }
    this.#connect(one!, other!);
  }

  /** The control connection between two living members is broken, or works again. */
  suspect(at: number, of: number, on: boolean): void {
    for (const entry of this.entries) {
      if (entry.incarnation !== at) continue;
      for (const { info, entry: peer } of entry.peers.values())
        if (peer.incarnation === of) this.schedule(entry.life, () => entry.events.peerSuspect?.(info, on));
    }
  }

  #connect(a: Entry, b: Entry): void {
    const ends = [a, b].map((entry) => ({ entry, offered: entry.native.offer(entry.handle) }));
    for (const [mine, theirs] of [ends, [...ends].reverse()]) {
      mine!.entry.native.connect(
        mine!.entry.handle,
        mine!.offered.peer,
        theirs!.entry.incarnation,
        theirs!.offered.offer,
      );
      const info = {
        index: mine!.offered.peer,
        incarnation: theirs!.entry.incarnation,
        name: theirs!.entry.name,
        pid: theirs!.entry.incarnation,
      };
      mine!.entry.peers.set(info.index, { info, entry: theirs!.entry });
      this.schedule(mine!.entry.life, () => {
        if (!mine!.entry.left) mine!.entry.events.peerUp(info);
      });
    }
  }

  #gone(entry: Entry, why: 'left' | 'died'): void {
    entry.left = true;
    for (const { entry: other } of entry.peers.values()) {
      if (other.left) continue;
      this.schedule(other.life, () => {
        if (other.left) return;
        for (const [index, { info, entry: gone }] of other.peers) {
          if (gone !== entry) continue;
          other.events.peerDown(info, why, why === 'died' ? 'killed' : undefined);
          other.peers.delete(index);
          if (!other.left) other.native.disconnect(other.handle, index);
        }
      });
    }
  }

  #port(entry: Entry): ClusterPort & { held: boolean } {
    return {
      incarnation: entry.incarnation,
      handle: entry.handle,
      get held() {
        return entry.held;
      },
      send: (index, type, body) => {
        const to = entry.peers.get(index);
        if (to === undefined || to.entry.left) return;
        this.log.push({ from: entry.name, to: to.entry.name, type, body });
        const text = JSON.stringify(body);
        const arrive = () =>
          this.schedule(to.entry.life, () => {
            if (to.entry.left) return;
            for (const { info, entry: from } of to.entry.peers.values()) {
              if (from === entry) to.entry.events.message(info, type, JSON.parse(text));
            }
          });
        if (entry.delayed === null) arrive();
        else entry.delayed.push(arrive);
      },
      tunnel() {},
      ref: (on) => {
        entry.held = on;
      },
      leave: async () => {
        if (entry.left) return;
        this.#gone(entry, 'left');
        entry.native.close(entry.handle);
      },
    };
  }
}
