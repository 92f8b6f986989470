/** Two more RDMA devices, each on one end of a wire (veth): what one sends to the other leaves the first and arrives at the second. */
import { writeFileSync } from 'node:fs';
import { output } from './checks.mjs';

/** By name; the addresses of their interfaces are 10.88.0.1 and 10.88.0.2. */
export const WIRED = ['rxe1', 'rxe2'];

const ip = (line) => output('ip', line.split(' '));
const setting = (interface_, name, value) =>
  writeFileSync(`/proc/sys/net/ipv4/conf/${interface_}/${name}`, String(value));

/**
 * Makes them. Both addresses are this machine's own, and what is for those goes no further than the loopback interface unless
 * rules say otherwise, which then hold for the rest of the machine's life.
 */
export function makeWire() {
  ip('link add wire0 type veth peer name wire1');
  setting('all', 'rp_filter', 0);
  for (const end of [0, 1]) {
    const name = `wire${end}`;
    setting(name, 'rp_filter', 0);
    setting(name, 'accept_local', 1);
    ip(`link set ${name} up`);
    ip(`addr add 10.88.0.${1 + end}/24 dev ${name}`);
  }
  for (const end of [0, 1]) {
    const [name, other] = [`wire${end}`, `10.88.0.${2 - end}`];
    // What comes in is delivered; what an end's device sends to the other one goes out.
    ip(`rule add pref 1 iif ${name} lookup local`);
    ip(`rule add pref 2 oif ${name} to ${other} lookup ${10 + end}`);
    ip(`route add ${other} dev ${name} table ${10 + end}`);
  }
  ip('rule add pref 100 lookup local');
  ip('rule del pref 0');
  for (const end of [0, 1])
    output('rdma', ['link', 'add', WIRED[end], 'type', 'rxe', 'netdev', `wire${end}`]);
}
