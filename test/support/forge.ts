import { writeHeader } from '../../src/channels/wire.js';
import type { World } from './world.js';

/** Sends records of its own making as member `from`, which that member would never send. */
export function forge(
  world: World,
  from: number,
  to: number,
  records: (write: (channel: number, kind: number, payload: Uint8Array, sequence?: number) => void) => void,
): void {
  const sender = world.fabric.handleOf(from);
  const parts: Uint8Array[] = [];
  records((channel, kind, payload, sequence = 1) => {
    const bytes = new Uint8Array((32 + payload.length + 7) & ~7);
    bytes.set(payload, 32);
    const [u32, f64] = [new Uint32Array(bytes.buffer), new Float64Array(bytes.buffer)];
    writeHeader(u32, f64, 0, channel, payload.length, sequence, kind, 0, 0);
    parts.push(bytes);
  });
  const receiver = world.fabric.handleOf(to);
  receiver.inbox.push({ from: sender, bytes: new Uint8Array(Buffer.concat(parts)), rows: 1, lane: 0 });
  receiver.armed = true;
  world.fabric.schedule(receiver.life, () => receiver.readable?.());
}
