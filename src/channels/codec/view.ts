const NOTHING = new Uint8Array(0);

/**
 * The views that codecs need over the memory of one Uint8Array, kept for the last one seen: making them, and even
 * asking for `.buffer`, costs more than reading a small message. A batch buffer serves many messages in a row, so one
 * entry for the whole environment is enough; one for each decoder would pin a batch for each.
 */
export class ViewCache {
  #source: Uint8Array | undefined;
  #memory: ArrayBuffer = new ArrayBuffer(0);
  #buffer: Buffer | undefined;
  #data: DataView | undefined;

  /** The ArrayBuffer under `source`. */
  memory(source: Uint8Array): ArrayBuffer {
    if (source !== this.#source) this.#take(source);
    return this.#memory;
  }

  /** A Buffer with the same positions as `source`. */
  buffer(source: Uint8Array): Buffer {
    if (source !== this.#source) this.#take(source);
    const buffer = this.#buffer;
    // A buffer that was detached or resized changes the length, and an old view with it.
    if (buffer !== undefined && buffer.length === source.length) return buffer;
    this.#buffer = Buffer.from(this.#memory, source.byteOffset, source.byteLength);
    return this.#buffer;
  }

  /** A DataView over all of the memory: positions are those of `source` plus its byteOffset. */
  data(source: Uint8Array): DataView {
    if (source !== this.#source) this.#take(source);
    this.#data ??= new DataView(this.#memory);
    return this.#data;
  }

  /** Lets go of the last source. */
  clear(): void {
    this.#take(NOTHING);
  }

  #take(source: Uint8Array): void {
    this.#source = source;
    this.#memory = source.buffer as ArrayBuffer;
    this.#buffer = undefined;
    this.#data = undefined;
  }
}

/** Views of what is decoded: batch buffers. */
export const sources = new ViewCache();
/** Views of what is written to: the send arena. */
export const targets = new ViewCache();
