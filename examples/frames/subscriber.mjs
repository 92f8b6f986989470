/** What both subscribers do: take leases of all frames, count, and report. */
import { once } from 'node:events';
import { join } from 'millrace';
import { firstValueFrom } from 'rxjs';
import { endCleanly, tell } from '../demo/child.mjs';
import { failure } from './problem.mjs';

/** @typedef {{ width: number, height: number }} Shape */

/**
 * A process of the example that looks at each frame.
 * @param {object} part
 * @param {string} part.name
 * @param {() => Promise<void>} [part.begin]
 * @param {(pixels: Uint8Array, number: number, shape: Shape) => void | Promise<void>} part.look the pixels are the publisher's own
 *   pages, RGBA, until it returns or its promise is settled
 * @param {() => object | undefined} [part.live] for the live line
 * @param {() => object} part.result written and told at the end
 */
export async function subscribe({ name, begin, look, live, result }) {
  /** @type {import('millrace').Member | undefined} */
  let member;
  const end = endCleanly(async () => member?.leave());
  const asked = once(process, 'message');
  /** @param {unknown} error */
  const fail = (error) => {
    const message = failure(error);
    return end(message.code, message);
  };

  try {
    await begin?.();
    member = await join(process.argv[2], { name });
    const shape = await firstValueFrom(
      /** @type {import('rxjs').Observable<Shape>} */ (member.channel('shape', { replay: 1 })),
    );
    const frames = member.channel('frames', { codec: 'bytes', overflow: 'wait' });
    const counts = { frames: 0, bytes: 0, missing: 0 };
    /** @type {Set<Promise<void>>} */
    const busy = new Set();
    frames.status$.subscribe((event) => {
      if (event.type === 'gap') counts.missing += event.count;
    });
    frames.leases().subscribe((lease) => {
      const done = lease
        .use(async (pixels) => {
          await look(pixels, lease.sequence, shape);
          counts.frames++;
          counts.bytes += pixels.length;
        })
        .catch(fail)
        .finally(() => busy.delete(done));
      busy.add(done);
    });
    const ticker = setInterval(() => tell({ type: 'progress', ...counts, ...live?.() }), 500);

    await asked;
    await Promise.all(busy);
    clearInterval(ticker);
    await end(0, { type: 'report', ...counts, copies: member.resources().copies, ...result() });
  } catch (error) {
    await fail(error);
  }
}
