import type { Rule } from './rule.js';

/** What a rule has done since its flow was made. */
export interface FlowCounters {
  /** Packets that it took, dropped or counted, and their bytes on the wire. */
  readonly packets: number;
  readonly bytes: number;
  /** Packets that it took and that did not reach the channel, since nobody made room in time. */
  readonly drops: number;
}

/** The flow table of a device, as steering uses it. All calls return at once. */
export interface FlowTable {
  /**
   * Makes a flow: its packets come from now on. A later one is the younger.
   * @param attr the rule as `ibv_flow_attr` (compile.ts)
   * @returns a handle for the other calls
   * @throws an Error whose `code` is the errno's name; then nothing was made
   */
  create(rule: Rule, attr: Uint8Array): number;
  /** Ends a flow. Never throws: one that is gone already is gone. */
  destroy(flow: number): void;
  read(flow: number): FlowCounters;
  /**
   * Looks whether network interfaces were replaced by others of their names: nothing comes for the flows of those any more,
   * and what is created from now on is for the new ones. @returns whether there are such flows
   */
  look(): boolean;
  /** Whether look() has found that of a flow. */
  dead(flow: number): boolean;
}
