import type { FlowCounters, FlowTable } from './flow-table.js';
import type { Ports } from './ports.js';
import { isObserver, type Rule, type Target } from './rule.js';

/** What a target's rules bring is handed to it while it has some. */
interface Link {
  readonly target: Target;
  rules: number;
  stop(): void;
}

/** Ports whose rules may lead to channels: the payloads that come for such a target are published on it. */
export class Forwarding implements FlowTable {
  readonly #ports: Ports;
  readonly #links: Link[] = [];
  readonly #byFlow = new Map<number, Link>();

  constructor(ports: Ports) {
    this.#ports = ports;
  }

  create(rule: Rule, attr: Uint8Array): number {
    const flow = this.#ports.create(rule, attr);
    if (typeof rule.action === 'object' && isObserver(rule.action.to)) {
      const link = this.#link(rule.action.to);
      link.rules++;
      this.#byFlow.set(flow, link);
    }
    return flow;
  }

  destroy(flow: number): void {
    this.#ports.destroy(flow);
    const link = this.#byFlow.get(flow);
    this.#byFlow.delete(flow);
    if (link === undefined || --link.rules > 0) return;
    link.stop();
    this.#links.splice(this.#links.indexOf(link), 1);
  }

  read(flow: number): FlowCounters {
    return this.#ports.read(flow);
  }

  look(): boolean {
    return this.#ports.look();
  }

  dead(flow: number): boolean {
    return this.#ports.dead(flow);
  }

  #link(target: Required<Target>): Link {
    const known = this.#links.find((link) => link.target === target);
    if (known !== undefined) return known;
    const subscription = this.#ports.stream(target.name).subscribe(({ bytes }) => target.next(bytes));
    const link = { target, rules: 0, stop: () => subscription.unsubscribe() };
    this.#links.push(link);
    return link;
  }
}
