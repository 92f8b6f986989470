/**
 * Memory and descriptors, in a process with --expose-gc. Prints one JSON line at its end.
 *   addon-memory.mjs FOLDER collect|cycle [COUNT]
 */
import { Endpoint, link, native, openFiles } from '../../support/addon.mjs';

const [folder, what, count = '0'] = process.argv.slice(2);
const turn = () => new Promise((resolve) => setImmediate(resolve));
const collect = async () => {
  for (let i = 0; i < 4; i++) {
    globalThis.gc();
    await turn(); // finalizers of external memory run in the loop
  }
};

/** Every reference to tables and arena is dropped and collected, with traffic before, between and after. */
async function collectAll() {
  const a = new Endpoint(folder);
  const b = new Endpoint(folder);
  const [toB, toA] = link(a, b);
  const handles = [a.handle, b.handle];
  const talk = () => {
    a.send([toB], 100);
    a.flush();
    b.poll();
  };
  for (let i = 0; i < 100; i++) talk();
  for (const each of [a, b]) {
    each.buffers = undefined;
    each.bytes = undefined;
    each.view = undefined;
  }
  await collect();
  // Native calls use the memory while no JavaScript object is left of it, but the addon's own reference.
  for (let i = 0; i < 100; i++) {
    native.flush(handles[0], 0);
    native.poll(handles[1], b.target, 0, 10);
    globalThis.gc();
  }
  for (const each of [a, b]) {
    each.buffers = native.buffers(each.handle);
    each.bytes = new Uint8Array(each.buffers.arena);
    each.view = new DataView(each.buffers.arena);
  }
  for (let i = 0; i < 100; i++) talk();
  const received = b.received.get(toA).count;
  // Views that live on after close are empty, and their memory is given back only with them.
  const kept = handles.map((handle) => native.buffers(handle));
  native.close(a.handle);
  native.close(b.handle);
  await collect();
  const lengths = kept.map(({ arena, sends }) => arena.byteLength + sends.length);
  kept.length = 0;
  await collect();
  return { received, disorder: b.disorder, lengths };
}

/** Opens and closes again and again. Growth after a warm-up is a leak. */
async function cycle(total) {
  const keeper = new Endpoint(folder, { slots: 16 }); // so that the fabric is not made anew each time
  const once = (i) => {
    const each = new Endpoint(folder, { slots: 16, slotBytes: 1024, arenaBytes: 1 << 16 });
    if (i % 2 === 0) {
      const [to] = link(keeper, each);
      keeper.send([to], 100);
      keeper.flush();
      each.poll();
      keeper.native.disconnect(keeper.handle, to);
      keeper.onTunnel = () => {}; // link() has chained it
    }
    if (i % 3 === 0) {
      native.watch(each.handle, () => {});
      native.sleep(each.handle, true);
    }
    each.close();
  };
  const measure = async () => {
    await collect();
    return { files: openFiles(), rss: process.memoryUsage().rss, external: process.memoryUsage().external };
  };
  const warmUp = Math.floor(total / 5);
  for (let i = 0; i < warmUp; i++) {
    once(i);
    if (i % 50 === 0) await turn();
  }
  const before = await measure();
  for (let i = 0; i < total - warmUp; i++) {
    once(i);
    if (i % 50 === 0) await turn();
  }
  const after = await measure();
  keeper.close();
  return {
    files: after.files - before.files,
    rss: after.rss - before.rss,
    external: after.external - before.external,
  };
}

const result = what === 'collect' ? await collectAll() : await cycle(Number(count));
process.stdout.write(`${JSON.stringify(result)}\n`);
