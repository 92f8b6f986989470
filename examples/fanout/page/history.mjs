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
    for (const { id, label } of points) if (!this.series.has(id)) this.series.set(id, this.#fresh(label));
    this.times.push(time);
    const byId = new Map(points.map((point) => [point.id, point]));
    const old = this.times.findIndex((one) => one >= time - SPAN);
    this.times.splice(0, old);
    for (const [id, series] of this.series) {
      for (const metric of METRICS) {
        series[metric].push(byId.get(id)?.[metric] ?? null);
        series[metric].splice(0, old);
      }
      if (!byId.has(id) && series.rate.every((one) => one === null)) this.series.delete(id);
    }
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
   * @param {string} label
   * @returns {Series}
   */
  #fresh(label) {
    const used = new Set([...this.series.values()].map(({ colour }) => colour));
    let colour = 0;
    while (used.has(colour)) colour++;
    const holes = () => this.times.map(() => null);
    return { label, colour, rate: holes(), p50: holes(), p99: holes(), drops: holes() };
  }
}
