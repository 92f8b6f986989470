import type { ClusterPort, Engine } from './channels/engine.js';
import { Member as ChannelMember } from './channels/member.js';
import type { NativePortCounters } from './native/port-calls.js';
import type { Datagrams } from './steering/datagrams.js';
import { Forwarding } from './steering/forward.js';
import { Ports } from './steering/ports.js';
import { Steering } from './steering/steering.js';
import { invalidArgument } from './suggest.js';

/**
 * One environment (main thread or worker) in a domain: its channels, and the rules that bring network flows into them.
 *
 * `C` maps channel names to payload types (`join<Contract>()`); without it any name goes and payloads are `unknown` unless a
 * type argument, a schema or a codec says more.
 */
export class Member<C = undefined> extends ChannelMember<C> {
  /** Which packets of the network come into which streams and channels. */
  readonly steering: Steering;
  readonly #ports: Ports;

  /** Members are made by join(). */
  protected constructor(domain: string, name: string, engine: Engine, cluster: ClusterPort) {
    super(domain, name, engine, cluster);
    const { native, handle } = engine.transport;
    const { device } = native.resources(handle);
    this.#ports = new Ports(native, device.startsWith('soft') ? 'soft' : device);
    this.steering = new Steering(new Forwarding(this.#ports));
  }

  /**
   * What rules steer to that name (`to`), with addresses and times. The same object for the same name; has no memory.
   * @throws MillraceTypeError ERR_INVALID_ARGUMENT, MillraceError ERR_MEMBER_CLOSED
   */
  datagrams(name: string): Datagrams {
    this.checkOpen();
    if (typeof name !== 'string' || name === '')
      invalidArgument('datagrams()', 'the name', name, 'a string that is not empty');
    return this.#ports.stream(name);
  }

  /**
   * What the port of each network interface that rules name has seen since its first rule, by its name; `''` is all of them. On
   * an adapter only `malformed` and `failed` are counted.
   */
  portCounters(): Readonly<Record<string, NativePortCounters>> {
    return this.#ports.counters();
  }

  /** The rules end first. */
  override leave(): Promise<void> {
    this.steering.close();
    this.#ports.close();
    return super.leave();
  }
}
