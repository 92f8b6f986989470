/** Snapshots for browsers: one that does not read costs its bound, and nobody else anything. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { Live } from '../../examples/fanout/live.mjs';
import { openWeb } from '../../examples/fanout/web.mjs';

/** A WebSocket that nobody reads from, until somebody does. */
class Still {
  bufferedAmount = 0;
  sent: { n: number }[] = [];
  terminated = false;
  #closed = () => {};
  on(event: string, listener: () => void) {
    if (event === 'close') this.#closed = listener;
  }
  send(text: string) {
    this.bufferedAmount += text.length;
    this.sent.push(JSON.parse(text));
  }
  terminate() {
    this.terminated = true;
    this.#closed();
  }
}

describe('a browser that does not read', () => {
  test('misses snapshots, which are counted, and gets the newest when it reads again', () => {
    const live = new Live({ bound: 1000, now: () => 0 });
    const [still, other] = [new Still(), new Still()];
    live.add(still);
    live.add(other);
    const pad = 'x'.repeat(100);
    for (let n = 1; n <= 500; n++) {
      live.push({ n, pad });
      other.bufferedAmount = 0;
    }
    const got = still.sent.length;
    expect(still.bufferedAmount).toBeLessThan(1000 + 2 * pad.length);
    expect(got).toBeLessThan(12);
    expect(live.counts).toEqual({ connected: 2, skipped: 500 - got, ended: 0 });
    expect(other.sent).toHaveLength(500);
    still.bufferedAmount = 0;
    live.push({ n: 501, pad });
    expect(still.sent.at(-1)!.n).toBe(501);
    expect(still.sent).toHaveLength(got + 1);
  });

  test('is let go after half a minute', () => {
    let now = 0;
    const live = new Live({ bound: 10, now: () => now });
    const still = new Still();
    live.add(still);
    for (let n = 0; n < 3; n++) live.push({ n, pad: 'x'.repeat(100) });
    now = 29_999;
    live.push({});
    expect(still.terminated).toBe(false);
    now = 30_000;
    live.push({});
    expect(still.terminated).toBe(true);
    expect(live.counts).toEqual({ connected: 0, skipped: 4, ended: 1 });
  });

  test('one that has come late gets the newest at once', () => {
    const live = new Live();
    live.push({ n: 7 });
    const still = new Still();
    live.add(still);
    expect(still.sent).toEqual([{ n: 7 }]);
    live.close();
    expect(still.terminated).toBe(true);
    expect(live.counts.connected).toBe(0);
  });
});

describe('over a real connection', () => {
  const BOUND = 64 * 1024;
  let live: Live;
  let web: Awaited<ReturnType<typeof openWeb>>;
  const sockets: Socket[] = [];
  afterEach(() => {
    for (const socket of sockets) socket.destroy();
    live.close();
    web.close();
  });

  /** Opens the WebSocket by hand, so that the test decides when it reads. */
  async function open(headers: Record<string, string>): Promise<{ socket: Socket; status: string }> {
    const { hostname, port, host, origin } = new URL(web.url);
    const socket = connect(Number(port), hostname);
    sockets.push(socket);
    const all = { host, origin, upgrade: 'websocket', connection: 'Upgrade', ...headers };
    const lines = Object.entries({
      ...all,
      'sec-websocket-version': '13',
      'sec-websocket-key': 'dGhlIHNhbXBsZSBub25jZQ==',
    });
    const text = lines.flatMap(([name, value]) => (value === '' ? [] : [`${name}: ${value}\r\n`]));
    socket.write(`GET /live HTTP/1.1\r\n${text.join('')}\r\n`);
    const [first] = (await once(socket, 'data')) as [Buffer];
    return { socket, status: first.toString('latin1').split(' ')[1]! };
  }

  test('what waits for a browser that does not read stays within its bound', async () => {
    const kept: { bufferedAmount: number }[] = [];
    live = new (class extends Live {
      override add(socket: Parameters<Live['add']>[0]) {
        kept.push(socket);
        super.add(socket);
      }
    })({ bound: BOUND });
    web = await openWeb({ host: '127.0.0.1', port: 0, live });
    const { socket, status } = await open({});
    expect(status).toBe('101');
    socket.pause();
    const snapshot = { pad: 'x'.repeat(BOUND / 2) };
    // More than the kernel's buffers take, by far.
    let most = 0;
    for (let n = 0; n < 2000; n++) {
      live.push(snapshot);
      most = Math.max(most, kept[0]!.bufferedAmount);
      if (n % 50 === 0) await new Promise(setImmediate);
    }
    expect(most).toBeLessThan(2 * BOUND);
    expect(live.counts.skipped).toBeGreaterThan(1000);
    // It reads again: the next one reaches it.
    let text = '';
    socket.setEncoding('latin1').on('data', (chunk: string) => {
      text = (text + chunk).slice(-200);
    });
    socket.resume();
    while (kept[0]!.bufferedAmount > 0) await new Promise(setImmediate);
    live.push({ last: true });
    while (!text.includes('{"last":true}')) await new Promise(setImmediate);
  });

  test('only pages of its own origin get one', async () => {
    live = new Live();
    web = await openWeb({ host: '127.0.0.1', port: 0, live });
    const { port } = new URL(web.url);
    expect((await open({ origin: 'http://example.com' })).status).toBe('403');
    expect((await open({ origin: '' })).status).toBe('403');
    expect((await open({ host: 'example.com', origin: 'http://example.com' })).status).toBe('403');
    expect((await open({ host: `localhost:${port}`, origin: `http://localhost:${port}` })).status).toBe(
      '101',
    );
    expect(live.counts.connected).toBe(1);
  });

  test('a fixed list of files, with a policy that lets nothing else in', async () => {
    live = new Live();
    web = await openWeb({ host: '127.0.0.1', port: 0, live });
    const page = await fetch(web.url);
    expect(page.status).toBe(200);
    expect(page.headers.get('content-security-policy')).toMatch(/default-src 'none'; script-src 'self';/);
    const html = await page.text();
    const files = [...html.matchAll(/(?:src|href)="(\/[^"]*)"/g)].map(([, path]) => path!);
    expect(files).toHaveLength(4);
    for (const path of [...files, '/charts.mjs', '/history.mjs', '/tables.mjs'])
      expect((await fetch(new URL(path, web.url))).status, path).toBe(200);
    for (const path of ['/%2e%2e/service.mjs', '/../service.mjs', '//etc/passwd', '/live'])
      expect((await fetch(`${web.url.slice(0, -1)}${path}`)).status, path).toBe(404);
    expect((await fetch(web.url, { method: 'POST' })).status).toBe(405);
  });
});
