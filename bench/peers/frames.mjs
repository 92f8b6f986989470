/** Messages on a byte stream: a length of four bytes, then the message. */

export function frame(bytes) {
  const out = Buffer.allocUnsafe(4 + bytes.length);
  out.writeUInt32LE(bytes.length, 0);
  out.set(bytes, 4);
  return out;
}

/** Calls `take(bytes)` for each message; bytes are views of what the socket gave. */
export function deframer(take) {
  let rest = null;
  return (chunk) => {
    const data = rest === null ? chunk : Buffer.concat([rest, chunk]);
    // Asked for once a chunk: the property costs more than a view.
    const { buffer, byteOffset, length: end } = data;
    let at = 0;
    while (end - at >= 4) {
      const length = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24);
      if (end - at - 4 < length) break;
      take(new Uint8Array(buffer, byteOffset + at + 4, length));
      at += 4 + length;
    }
    rest = at === end ? null : data.subarray(at);
  };
}
