/** Live readings of this host, parsed from /proc. Rates are since the reading before. */
import { readFileSync } from 'node:fs';

/** @param {string} path */
const read = (path) => readFileSync(path, 'utf8');

/** Busy share of every CPU in percent, since the previous call. */
export function cpuReader() {
  let before = new Map();
  return () => {
    const now = new Map();
    /** @type {Record<string, number>} */
    const busy = {};
    for (const line of read('/proc/stat').split('\n')) {
      const fields = line.split(/\s+/);
      if (!/^cpu\d*$/.test(fields[0])) continue;
      // user nice system idle iowait irq softirq steal (ticks)
      const ticks = fields.slice(1, 9).map(Number);
      const total = ticks.reduce((sum, n) => sum + n, 0);
      const idle = ticks[3] + ticks[4];
      now.set(fields[0], { total, idle });
      const old = before.get(fields[0]) ?? { total: 0, idle: 0 };
      const span = total - old.total;
      busy[fields[0] === 'cpu' ? 'all' : fields[0]] =
        span > 0 ? round(100 * (1 - (idle - old.idle) / span)) : 0;
    }
    before = now;
    return { busy, load: Number(read('/proc/loadavg').split(' ')[0]) };
  };
}

/** Memory in MiB. */
export function readMemory() {
  const kib = Object.fromEntries(
    [...read('/proc/meminfo').matchAll(/^(\w+):\s+(\d+) kB$/gm)].map(([, name, n]) => [name, Number(n)]),
  );
  /** @param {string} name */
  const mib = (name) => Math.round((kib[name] ?? 0) / 1024);
  return {
    total: mib('MemTotal'),
    available: mib('MemAvailable'),
    cached: mib('Cached'),
    shared: mib('Shmem'),
  };
}

/** Bytes and packets of every network interface, and bytes per second since the previous call. */
export function networkReader() {
  let before = new Map();
  let then = performance.now();
  return () => {
    const now = performance.now();
    const seconds = (now - then) / 1000;
    then = now;
    /** @type {Record<string, object>} */
    const interfaces = {};
    const counters = new Map();
    for (const line of read('/proc/net/dev').split('\n')) {
      const match = /^\s*([^:\s]+):\s*(.*)$/.exec(line);
      if (!match) continue;
      const n = match[2].split(/\s+/).map(Number);
      const [received, sent] = [n[0], n[8]];
      const old = before.get(match[1]) ?? { received, sent };
      /** @param {number} delta */
      const rate = (delta) => (seconds > 0 ? Math.round(delta / seconds) : 0);
      counters.set(match[1], { received, sent });
      interfaces[match[1]] = {
        received,
        sent,
        receivedPerSecond: rate(received - old.received),
        sentPerSecond: rate(sent - old.sent),
      };
    }
    before = counters;
    return { interfaces };
  };
}

/** @param {number} n */
const round = (n) => Math.round(n * 10) / 10;
