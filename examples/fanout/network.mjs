/**
 * Where the demo's senders are: as root in a network namespace of their own, joined to ours by a pair of virtual interfaces; else
 * on the loopback interface. The namespace has no name: it is there as long as the sender's process, and the interfaces go
 * with it, however that ends.
 */
import { execFileSync, spawnSync } from 'node:child_process';

/** Why there can't be a namespace; undefined when there can. */
function obstacle() {
  if (process.getuid?.() !== 0) return 'not root';
  if (spawnSync('ip', ['-V']).status !== 0) return 'no ip command (Debian: iproute2)';
  // What the demo is about to do, in a namespace that ends with the command.
  const link = ['ip', 'link', 'add', 'mr0', 'type', 'veth', 'peer', 'name', 'mr1'];
  if (spawnSync('unshare', ['--net', ...link]).status !== 0)
    return 'namespaces or links cannot be made (CAP_SYS_ADMIN, CAP_NET_ADMIN)';
  return undefined;
}

/**
 * @typedef {object} Place
 * @property {string} interface that the quotes come in through
 * @property {string} from the senders' address
 * @property {string} text for people
 * @property {string[]} prefix the command in front of the sender's
 * @property {(pid: number) => void} connect once the sender's process is there: makes the link. Throws when that fails
 */

/**
 * @param {boolean} loopback whether it has to be the loopback interface
 * @returns {Place}
 */
export function choosePlace(loopback) {
  const why = loopback ? 'as asked' : obstacle();
  if (why !== undefined) {
    const text = `on the loopback interface (${why})`;
    return { interface: 'lo', from: '127.0.0.1', text, prefix: [], connect: () => {} };
  }
  const ours = `mrfan${process.pid}`;
  const from = '10.213.0.2';
  return {
    interface: ours,
    from,
    text: `in a network namespace of their own, behind ${ours}`,
    prefix: ['unshare', '--net'],
    connect: (pid) => {
      /** @param {string[]} args */
      const ip = (...args) => execFileSync('ip', args, { stdio: 'pipe' });
      /** @param {string[]} args */
      const inside = (...args) =>
        execFileSync('nsenter', ['--net', '-t', `${pid}`, 'ip', ...args], { stdio: 'pipe' });
      ip('link', 'add', ours, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', `${pid}`);
      inside('address', 'add', `${from}/30`, 'dev', 'eth0');
      inside('link', 'set', 'eth0', 'up');
      // Without an address: what comes in is steered, and nothing goes out.
      ip('link', 'set', ours, 'addrgenmode', 'none');
      ip('link', 'set', ours, 'up');
    },
  };
}
