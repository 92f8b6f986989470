import type { Native } from '../native/binding.js';
import type { NativePortCounters } from '../native/port-calls.js';
import { Datagrams } from './datagrams.js';
import type { FlowCounters, FlowTable } from './flow-table.js';
import { Port, type PortFlow } from './port.js';
import type { Rule } from './rule.js';

/**
 * The flow table of a member: a port for each network interface that rules name (and one for all of them), opened with its
 * first rule and closed with its last.
 */
export class Ports implements FlowTable {
  readonly #native: Native;
  readonly #device: string;
  readonly #ports = new Map<string, Port>();
  readonly #flows = new Map<number, { readonly port: Port; readonly flow: PortFlow }>();
  readonly #streams = new Map<string, Datagrams>();
  #next = 1;

  /** @param device `soft`, or the name of an RDMA device */
  constructor(native: Native, device: string) {
    this.#native = native;
    this.#device = device;
  }

  /** The stream that rules with this target lead to. The same object for the same name. */
  stream(name: string): Datagrams {
    let stream = this.#streams.get(name);
    if (stream === undefined) {
      stream = new Datagrams(name, () => this.#hold());
      this.#streams.set(name, stream);
    }
    return stream;
  }

  create(rule: Rule, attr: Uint8Array): number {
    const name = nameOf(rule);
    let port = this.#ports.get(name);
    if (port === undefined) {
      port = new Port(this.#native, this.#device, name);
      this.#ports.set(name, port);
      this.#hold();
    }
    try {
      const stream = typeof rule.action === 'object' ? this.stream(rule.action.to.name) : undefined;
      this.#flows.set(this.#next, { port, flow: port.create(rule, attr, stream) });
    } catch (error) {
      this.#forget(name, port);
      throw error;
    }
    return this.#next++;
  }

  destroy(handle: number): void {
    const known = this.#flows.get(handle);
    if (known === undefined) return;
    this.#flows.delete(handle);
    known.port.destroy(known.flow);
    this.#forget(nameOf(known.flow.rule), known.port);
  }

  read(handle: number): FlowCounters {
    const known = this.#flows.get(handle);
    return known === undefined ? { packets: 0, bytes: 0, drops: 0 } : known.port.read(known.flow);
  }

  look(): boolean {
    for (const [name, port] of this.#ports) if (port.counters().stale) this.#ports.delete(name);
    return [...this.#flows.keys()].some((flow) => this.dead(flow));
  }

  dead(flow: number): boolean {
    const known = this.#flows.get(flow);
    return known !== undefined && this.#ports.get(nameOf(known.flow.rule)) !== known.port;
  }

  /** What each open port has seen, by network interface; `''` is all of them. */
  counters(): Readonly<Record<string, NativePortCounters>> {
    return Object.fromEntries([...this.#ports].map(([name, port]) => [name, port.counters()]));
  }

  /** Ends all rules, and the streams. */
  close(): void {
    for (const { port } of this.#flows.values()) port.close();
    this.#ports.clear();
    this.#flows.clear();
    for (const stream of this.#streams.values()) stream.end();
  }

  #forget(name: string, port: Port): void {
    if (port.flows > 0) return;
    port.close();
    if (this.#ports.get(name) === port) this.#ports.delete(name);
  }

  /** The event loop is held while somebody listens and there are rules. */
  #hold(): void {
    const on = [...this.#streams.values()].some(({ observed }) => observed);
    for (const port of this.#ports.values()) port.hold(on);
  }
}

/** What its port is known by; `''` is all interfaces. */
const nameOf = ({ match }: Rule): string => match.interface ?? '';
