/** Captures for tests, in the formats of tcpdump and Wireshark. */

interface Given {
  readonly frame: Uint8Array;
  /** s since the epoch. */
  readonly time?: number;
  readonly interface?: number;
}

const pad4 = (bytes: number) => (4 - (bytes % 4)) % 4;

/** A classic pcap file. */
export function pcap(packets: readonly Given[], { little = true, nano = false, link = 1 } = {}): Uint8Array {
  const header = new DataView(new ArrayBuffer(24));
  header.setUint32(0, nano ? 0xa1b23c4d : 0xa1b2c3d4, little);
  header.setUint16(4, 2, little);
  header.setUint16(6, 4, little);
  header.setUint32(16, 65535, little);
  header.setUint32(20, link, little);
  const parts = packets.map(({ frame, time = 0 }) => {
    const record = new DataView(new ArrayBuffer(16));
    record.setUint32(0, Math.floor(time), little);
    record.setUint32(4, Math.round((time % 1) * (nano ? 1e9 : 1e6)), little);
    record.setUint32(8, frame.length, little);
    record.setUint32(12, frame.length, little);
    return [Buffer.from(record.buffer), Buffer.from(frame)];
  });
  return Buffer.concat([Buffer.from(header.buffer), ...parts.flat()]);
}

function block(type: number, body: Uint8Array, little: boolean): Buffer {
  const length = 12 + body.length + pad4(body.length);
  const out = Buffer.alloc(length);
  const view = new DataView(out.buffer, out.byteOffset, length);
  view.setUint32(0, type, little);
  view.setUint32(4, length, little);
  out.set(body, 8);
  view.setUint32(length - 4, length, little);
  return out;
}

/** A pcapng file with these interfaces; times in us, or in ns as an option of the interface says. */
export function pcapng(
  interfaces: readonly { name?: string; link?: number; nano?: boolean }[],
  packets: readonly Given[],
  { little = true, simple = false } = {},
): Uint8Array {
  const section = new DataView(new ArrayBuffer(16));
  section.setUint32(0, 0x1a2b3c4d, little);
  section.setUint16(4, 1, little);
  section.setBigInt64(8, -1n, little);
  const ports = interfaces.map(({ name, link = 1, nano = false }) => {
    const text = Buffer.from(name ?? '');
    const body = new DataView(
      new ArrayBuffer(
        8 + (name === undefined ? 0 : 4 + text.length + pad4(text.length)) + (nano ? 8 : 0) + 4,
      ),
    );
    body.setUint16(0, link, little);
    let at = 8;
    if (name !== undefined) {
      body.setUint16(at, 2, little);
      body.setUint16(at + 2, text.length, little);
      Buffer.from(body.buffer).set(text, at + 4);
      at += 4 + text.length + pad4(text.length);
    }
    if (nano) {
      body.setUint16(at, 9, little);
      body.setUint16(at + 2, 1, little);
      body.setUint8(at + 4, 9);
    }
    return block(1, new Uint8Array(body.buffer), little);
  });
  const records = packets.map(({ frame, time = 0, interface: port = 0 }) => {
    const head = new DataView(new ArrayBuffer(simple ? 4 : 20));
    if (!simple) {
      const ticks = BigInt(Math.round(time * 1e6)) * (interfaces[port]?.nano ? 1000n : 1n);
      head.setUint32(0, port, little);
      head.setUint32(4, Number(ticks >> 32n), little);
      head.setUint32(8, Number(ticks & 0xffffffffn), little);
      head.setUint32(12, frame.length, little);
    }
    head.setUint32(simple ? 0 : 16, frame.length, little);
    return block(simple ? 3 : 6, Buffer.concat([Buffer.from(head.buffer), frame]), little);
  });
  return Buffer.concat([block(0x0a0d0d0a, new Uint8Array(section.buffer), little), ...ports, ...records]);
}
