/** The parts of the fan-out example that work on data alone. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { decodeQuote, encodeQuote, QUOTE_BYTES } from '../../examples/fanout/feed.mjs';
import { Latency } from '../../examples/fanout/latency.mjs';
import { History, METRICS, SPAN } from '../../examples/fanout/page/history.mjs';
import { readReport } from '../../examples/fanout/reports.mjs';
import { stateLines } from '../../examples/fanout/table.mjs';
import { resultOf, totalLines } from '../../examples/fanout/totals.mjs';
import { Flow } from '../../examples/fanout/upstream.mjs';

describe('quotes', () => {
  const symbol = fc
    .array(fc.integer({ min: 0x21, max: 0x7e }), { minLength: 1, maxLength: 8 })
    .map((codes) => String.fromCharCode(...codes));
  const finite = fc.double({ noNaN: true, noDefaultInfinity: true });

  test('what is encoded is decoded', () => {
    const quotes = fc.record({ symbol, sequence: fc.nat(2 ** 32 - 1), price: finite, time: finite });
    fc.assert(
      fc.property(quotes, (quote) => {
        expect(decodeQuote(encodeQuote(quote))).toEqual(quote);
      }),
    );
  });

  test('what is no quote is refused, at every length', () => {
    const whole = encodeQuote({ symbol: 'EURUSD', sequence: 1, price: 1, time: 1 });
    for (let length = 0; length < QUOTE_BYTES; length++)
      expect(decodeQuote(whole.subarray(0, length))).toBeUndefined();
    expect(decodeQuote(Buffer.concat([whole, Buffer.alloc(1)]))).toBeUndefined();
    const changed = (at: number, ...bytes: number[]) => {
      const copy = Buffer.from(whole);
      copy.set(bytes, at);
      return decodeQuote(copy);
    };
    expect(changed(0, 0)).toBeUndefined();
    expect(changed(8, 0)).toBeUndefined();
    expect(changed(9, 0x07)).toBeUndefined();
    expect(changed(16, 0x7f, 0xf0)).toBeUndefined();
    expect(changed(24, 0x7f, 0xf8)).toBeUndefined();
  });
});

describe('sequences of a rule', () => {
  const missing = (...sequences: number[]) => {
    const flow = new Flow();
    for (const sequence of sequences) flow.follow('a', sequence);
    return flow.missing;
  };
  test('holes are counted, late ones taken back, a sender that begins anew is none', () => {
    expect(missing(1, 2, 3)).toBe(0);
    expect(missing(5, 6, 9)).toBe(2);
    expect(missing(5, 7, 6, 8)).toBe(0);
    expect(missing(5000, 5001, 1, 2)).toBe(0);
  });
  test('each sender has its own', () => {
    const flow = new Flow();
    flow.follow('a', 1);
    flow.follow('b', 100);
    flow.follow('a', 2);
    flow.follow('b', 102);
    expect(flow.missing).toBe(1);
  });
});

test('percentiles are right to 5 %', () => {
  const latency = new Latency();
  expect(latency.endPeriod()).toBeNull();
  for (let ms = 1; ms <= 1000; ms++) latency.add(ms);
  const near = (value: number, wanted: number) => {
    expect(value).toBeGreaterThan(wanted * 0.95);
    expect(value).toBeLessThan(wanted * 1.05);
  };
  near(latency.endPeriod()!.p50, 500);
  latency.add(-1);
  expect(latency.endPeriod()!.p99).toBeLessThan(0.001);
  near(latency.total()!.p99, 990);
});

test('a report is taken as a whole or not at all', () => {
  const report = {
    ...{ policy: 'wait', topics: ['feed.*'], handled: 1, missing: 0, skipped: 0, time: 1 },
    latency: { p50: 1, p99: 2 },
  };
  expect(readReport({ ...report, more: 1 })).toEqual(report);
  expect(readReport({ ...report, latency: null })).toEqual({ ...report, latency: null });
  for (const wrong of [
    ...[null, 'report', {}, { ...report, policy: 1 }, { ...report, policy: 'x'.repeat(300) }],
    ...[
      { ...report, topics: [1] },
      { ...report, topics: Array(65).fill('a') },
      { ...report, handled: -1 },
    ],
    ...[
      { ...report, missing: 1.5 },
      { ...report, time: Number.NaN },
      { ...report, latency: { p50: 1 } },
    ],
  ])
    expect(readReport(wrong)).toBeUndefined();
});

describe('the history of the page', () => {
  const point = (id: string, rate: number) => ({ id, label: id, rate, p50: null, p99: null, drops: 0 });

  test('series of all metrics are as long as the time', () => {
    const history = new History();
    const points = fc.array(fc.subarray(['a', 'b', 'c']), { maxLength: 300 });
    fc.assert(
      fc.property(points, (samples) => {
        history.clear();
        for (const [i, ids] of samples.entries()) {
          if (ids.length === 0) history.gap();
          history.add(
            1 + i / 2,
            ids.map((id) => point(id, i)),
          );
        }
        const { times, series } = history;
        for (const one of series.values())
          for (const metric of METRICS) expect(one[metric]).toHaveLength(times.length);
        if (times.length > 0) expect(times.at(-1)! - times[0]!).toBeLessThanOrEqual(SPAN);
        expect(new Set([...series.values()].map(({ colour }) => colour)).size).toBe(series.size);
      }),
    );
  });

  test('a series that is gone is forgotten when nothing of it is left, and its colour is free', () => {
    const history = new History();
    history.add(0, [point('a', 1), point('b', 1)]);
    history.add(1, [point('b', 1)]);
    expect([...history.series.keys()]).toEqual(['a', 'b']);
    history.add(SPAN + 1, [point('b', 1), point('c', 1)]);
    expect([...history.series.keys()]).toEqual(['b', 'c']);
    expect(history.series.get('c')!.colour).toBe(0);
    // The clock of the service was set back.
    history.add(3, [point('b', 1)]);
    expect(history.times).toEqual([3]);
  });
});

describe('tables', () => {
  const browsers = { connected: 0, skipped: 0, ended: 0 };
  const empty = { number: 1, time: 0, seconds: 0, rules: [], subscribers: [], channels: [], browsers };

  test('with nothing in them', () => {
    const lines = stateLines({ ...empty, kernelDrops: 0, problem: 'why' });
    expect(lines.at(-1)).toBe('rules: why');
    expect(lines).toHaveLength(4);
  });

  test('only a subscriber that keeps up and lost something is a failure', () => {
    const rule = {
      name: 'a',
      to: 'feed.a',
      packets: 10,
      bytes: 0,
      drops: 0,
      missing: 0,
      quotes: 10,
      rate: 0,
    };
    const state = {
      ...empty,
      kernelDrops: 0,
      problem: null,
      rules: [{ ...rule, dropRate: 0, latency: null }],
    };
    const one = (name: string, delay: number, handled: number, skipped: number) => ({
      ...{ name, delay, policy: 'wait', handled: { 'feed.a': handled }, missing: 0, skipped, latency: null },
    });
    const fine = resultOf({ a: 10 }, state, [one('fast', 0, 10, 0), one('slow', 5, 3, 5)]);
    expect(fine.ok).toBe(true);
    expect(fine.subscribers[1]).toMatchObject({ handled: 3, dropped: 5, left: 2 });
    expect(totalLines(fine).at(-1)).toBe('Those that keep up lost nothing.');
    expect(resultOf({ a: 10 }, state, [one('fast', 0, 9, 0)]).ok).toBe(false);
    expect(resultOf({ a: 0 }, state, [one('fast', 0, 0, 0)]).ok).toBe(false);
  });
});
