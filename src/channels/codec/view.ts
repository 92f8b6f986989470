/**
 * A Buffer over the memory of a Uint8Array, kept for the last one seen: making one costs more than decoding a small
 * message. A batch buffer serves many messages in a row, so one entry is enough. It pins at most one batch.
 */
export class ViewCache {
  #source: Uint8Array | undefined;
  #view: Buffer | undefined;

  /** @returns a Buffer with the same memory and the same positions as `source`; valid as long as `source` is. */
  of(source: Uint8Array): Buffer {
    const view = this.#view;
    // A detached or resized buffer changes the length, and an old view with it.
    if (source === this.#source && view !== undefined && view.length === source.length) return view;
    const made = Buffer.from(source.buffer as ArrayBuffer, source.byteOffset, source.byteLength);
    this.#source = source;
    this.#view = made;
    return made;
  }
}

/** Views of what is decoded: batch buffers. */
export const sources = new ViewCache();
/** Views of what is written to: the send arena. */
export const targets = new ViewCache();
