/** What the charts show: the samples of the last two minutes, by series. No DOM here. */

export const METRICS = /** @type {const} */ (['rate', 'p50', 'p99', 'drops']);
/** Seconds that are kept. */
export const SPAN = 120;

/** @typedef {Record<(typeof METRICS)[number], number | null> & { id: string, label: string }} Point of one series */
/** @typedef {Record<(typeof METRICS)[number], (number | null)[]> & { label: string, colour: number }} Series */

export class History {
  /** @type {number[]} seconds since the epoch */
  times = [];
  /** @type {Map<string, Series>} by id; the order is that of their first point */
  series = new Map();

  /**
   * A sample of all series that there are. Those without a point in it have a hole there; those with nothing left are forgotten.
   * @param {number} time seconds since the epoch, later than the one before; else all of the past is forgotten
   * @param {Point[]} points
   */
  add(time, points) {
    if (time <= (this.times.at(-1) ?? Number.NEGATIVE_INFINITY)) this.clear();
    this.times.push(time);
    const old = this.times.findIndex((one) => one >= time - SPAN);
    this.times.splice(0, old);
    const byId = new Map(points.map((point) => [point.id, point]));
    for (const [id, series] of this.series) {
      for (const metric of METRICS) {
        series[metric].push(byId.get(id)?.[metric] ?? null);
        series[metric].splice(0, old);
      }
      if (!byId.has(id) && series.rate.every((one) => one === null)) this.series.delete(id);
    }
    for (const point of points) if (!this.series.has(point.id)) this.series.set(point.id, this.#begin(point));
  }

  /** A hole in all series, where the connection was lost. */
  gap() {
    const last = this.times.at(-1);
    if (last !== undefined) this.add(last + 0.001, []);
  }

  clear() {
    this.times = [];
    this.series.clear();
  }

  /**
   * @param {Point} point
   * @returns {Series}
   */
  #begin(point) {
    const used = new Set([...this.series.values()].map(({ colour }) => colour));
    let colour = 0;
    while (used.has(colour)) colour++;
    const before = Array(this.times.length - 1).fill(null);
    const { label, rate, p50, p99, drops } = point;
    return {
      ...{ label, colour, rate: [...before, rate], p50: [...before, p50] },
      ...{ p99: [...before, p99], drops: [...before, drops] },
    };
  }
}
