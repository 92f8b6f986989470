/** What became of the frames, in figures. */
import { table } from '../fanout/table.mjs';
import { chart } from './chart.mjs';

/**
 * What a subscriber reports, while it looks at frames and at its end.
 * @typedef {object} Report
 * @property {number} frames that it has looked at
 * @property {number} bytes of them
 * @property {number} missing frames that the library says will not come
 * @property {number} copies of payloads, by the library's count
 * @property {string[]} files
 * @property {Record<string, number[]>} [histogram]
 */
/** @typedef {{ sent: number, seconds: number, copies: number }} Sent what the publisher reports */
/** @typedef {{ name: string, how: string, width: number, height: number, bytes: number }} Source */

/** GB/s. @param {number} bytes @param {number} seconds */
export const rate = (bytes, seconds) => (seconds > 0 ? bytes / seconds / 1e9 : 0);

/**
 * @param {Source} source
 * @param {Sent} sent
 * @param {[string, Report][]} reports by subscriber
 */
export function resultOf(source, { sent, seconds, copies }, reports) {
  const subscribers = reports.map(([subscriber, report]) => ({
    ...{ subscriber, frames: report.frames, lost: sent - report.frames, missing: report.missing },
    ...{ gbPerSecond: rate(report.bytes, seconds), copies: report.copies, files: report.files },
  }));
  return {
    ok: sent > 0 && subscribers.every(({ lost, missing }) => lost === 0 && missing === 0),
    ...{ source, frames: sent, seconds, framesPerSecond: sent / seconds },
    gbPerSecond: subscribers.reduce((sum, one) => sum + one.gbPerSecond, 0),
    copies: subscribers.reduce((sum, one) => sum + one.copies, copies),
    publisher: { copies },
    subscribers,
  };
}

/**
 * @param {ReturnType<typeof resultOf>} result
 * @param {Record<string, number[]>} histogram
 */
export function resultLines({ ok, subscribers, publisher, ...total }, histogram) {
  const perSecond = total.framesPerSecond.toFixed(1);
  const gb = total.gbPerSecond.toFixed(2);
  const cells = subscribers.map(({ subscriber, frames, lost, gbPerSecond, copies }) => [
    ...[subscriber, String(frames), String(lost), (frames / total.seconds).toFixed(1)],
    ...[gbPerSecond.toFixed(2), String(copies)],
  ]);
  cells.push(['publisher', String(total.frames), '', perSecond, gb, String(publisher.copies)]);
  return [
    '',
    ...table(['', 'frames', 'lost', 'frames/s', 'GB/s', 'copies'], cells, 1),
    '',
    ...chart(histogram),
    '',
    ...subscribers.flatMap(({ subscriber, files }) =>
      files.map((file) => `${subscriber.padEnd(9)}  ${file}`),
    ),
    '',
    `${perSecond} frames/s, ${gb} GB/s handed over, ${total.copies} copies made on the way. ${ok ? 'Nothing was lost.' : 'SOMETHING WAS LOST.'}`,
  ];
}
