/** Times in a fixed number of buckets, an eighth of a power of two wide each: percentiles are right to 5 %. */
const BUCKETS = 256;

/** @typedef {{ p50: number, p99: number }} Percentiles in ms */

class Histogram {
  #counts = new Uint32Array(BUCKETS);
  #count = 0;

  /** @param {number} ms */
  add(ms) {
    // Clocks of two processes may differ by some microseconds.
    const us = ms > 0 ? ms * 1000 : 0;
    this.#counts[Math.min(BUCKETS - 1, Math.floor(8 * Math.log2(1 + us)))]++;
    this.#count++;
  }

  /** @returns {Percentiles | null} null when there was nothing */
  read() {
    return this.#count === 0 ? null : { p50: this.#at(0.5), p99: this.#at(0.99) };
  }

  clear() {
    this.#counts.fill(0);
    this.#count = 0;
  }

  /** @param {number} share */
  #at(share) {
    let left = Math.ceil(share * this.#count);
    let bucket = 0;
    while (left > this.#counts[bucket]) left -= this.#counts[bucket++];
    return (2 ** ((bucket + 0.5) / 8) - 1) / 1000;
  }
}

/** Latencies of the present period, and of all time. */
export class Latency {
  #period = new Histogram();
  #total = new Histogram();

  /** @param {number} ms */
  add(ms) {
    this.#period.add(ms);
    this.#total.add(ms);
  }

  /** Of the period that ends with this call. */
  endPeriod() {
    const read = this.#period.read();
    this.#period.clear();
    return read;
  }

  /** Of all time. */
  total() {
    return this.#total.read();
  }
}
