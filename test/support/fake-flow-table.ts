import type { FlowCounters, FlowTable } from '../../src/steering/flow-table.js';
import { steer } from '../../src/steering/match.js';
import { decodePacket } from '../../src/steering/packet.js';
import type { Rule } from '../../src/steering/rule.js';

/** A device's flow table in memory, where rules are as old as their flows. */
export class FakeFlowTable implements FlowTable {
  /** By handle, the oldest first. */
  readonly flows = new Map<number, { rule: Rule; packets: number; bytes: number; drops: number }>();
  /** What was done: `+name`, `-name`. */
  readonly log: string[] = [];
  /** The so-many-th flow from now on fails, with that errno. */
  failure: { after: number; code: string } | undefined;
  private last = 0;

  create(rule: Rule, _attr: Uint8Array): number {
    if (this.failure !== undefined && this.failure.after-- === 0) {
      const { code } = this.failure;
      this.failure = undefined;
      throw Object.assign(new Error(`create a flow: ${code}`), { code, what: 'create a flow', detail: '' });
    }
    this.flows.set(++this.last, { rule, packets: 0, bytes: 0, drops: 0 });
    this.log.push(`+${rule.name}`);
    return this.last;
  }

  destroy(flow: number): void {
    this.log.push(`-${this.flows.get(flow)?.rule.name}`);
    this.flows.delete(flow);
  }

  read(flow: number): FlowCounters {
    const { packets, bytes, drops } = this.flows.get(flow)!;
    return { packets, bytes, drops };
  }

  /** Handles of flows whose interface was replaced. */
  readonly stale = new Set<number>();
  look(): boolean {
    return [...this.flows.keys()].some((flow) => this.dead(flow));
  }
  dead(flow: number): boolean {
    return this.stale.has(flow);
  }

  /** Names of the rules, the oldest first. */
  get names(): string[] {
    return [...this.flows.values()].map(({ rule }) => rule.name);
  }

  /** A frame comes in. @returns who gets it, and who drops it */
  deliver(frame: Uint8Array): string[] {
    const rules = [...this.flows.values()].map(({ rule }) => rule);
    const { takers, sniffers, droppedBy } = steer(rules, decodePacket(frame)!);
    const acted = [...takers, ...sniffers, ...(droppedBy === undefined ? [] : [droppedBy])];
    for (const flow of this.flows.values()) {
      if (!acted.includes(flow.rule)) continue;
      flow.packets += 1;
      flow.bytes += frame.length;
    }
    return acted.map(({ name }) => name);
  }
}
