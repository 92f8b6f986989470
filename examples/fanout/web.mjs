/** The page and its WebSocket: a fixed list of files, for pages of our own origin only. */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { isIPv6 } from 'node:net';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { WebSocketServer } from 'ws';

const page = join(dirname(fileURLToPath(import.meta.url)), 'page');
const uplot = dirname(createRequire(import.meta.url).resolve('uplot'));
const HTML = 'text/html; charset=utf-8';
const SCRIPT = 'text/javascript; charset=utf-8';
const STYLE = 'text/css; charset=utf-8';
/** All that is served: no path is ever made of what was asked for. @type {Record<string, [string, string]>} */
const FILES = {
  '/': [join(page, 'index.html'), HTML],
  '/app.mjs': [join(page, 'app.mjs'), SCRIPT],
  '/charts.mjs': [join(page, 'charts.mjs'), SCRIPT],
  '/history.mjs': [join(page, 'history.mjs'), SCRIPT],
  '/tables.mjs': [join(page, 'tables.mjs'), SCRIPT],
  '/style.css': [join(page, 'style.css'), STYLE],
  '/uplot.js': [join(uplot, 'uPlot.iife.min.js'), SCRIPT],
  '/uplot.css': [join(uplot, 'uPlot.min.css'), STYLE],
};
/** Browsers at a time. */
const MOST_BROWSERS = 64;

/** @param {string} host */
const headersFor = (host) => ({
  // Some browsers don't take 'self' for a WebSocket.
  'content-security-policy': `default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self' ws://${host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`,
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-resource-policy': 'same-origin',
  'cache-control': 'no-cache',
});

/**
 * The Host header, if it names this server: another site's name that leads here (DNS rebinding) is refused.
 * @param {import('node:http').IncomingMessage} request
 * @param {string} own what the server was told to listen on
 */
function hostOf({ headers: { host = '' }, socket: { localAddress = '' } }, own) {
  const name = host.replace(/:\d+$/, '').toLowerCase();
  const address = localAddress.replace(/^::ffff:/, '');
  const names = ['localhost', own, address].map((one) => (isIPv6(one) ? `[${one}]` : one.toLowerCase()));
  return names.includes(name) ? host : undefined;
}

/**
 * @param {import('node:http').IncomingMessage} request
 * @param {import('node:http').ServerResponse} response
 * @param {Map<string, { bytes: Buffer, type: string }>} files
 * @param {string} own
 */
function answer(request, response, files, own) {
  const host = hostOf(request, own);
  const file = files.get(request.url?.split('?')[0] ?? '');
  /**
   * @param {number} code
   * @param {string} text
   */
  const refuse = (code, text) => {
    response
      .writeHead(code, { ...headersFor(''), 'content-type': 'text/plain; charset=utf-8' })
      .end(`${text}\n`);
  };
  if (host === undefined) return refuse(421, 'This server has another name.');
  if (request.method !== 'GET' && request.method !== 'HEAD') return refuse(405, 'Only GET.');
  if (file === undefined) return refuse(404, 'There is nothing here.');
  const { bytes, type } = file;
  response.writeHead(200, { ...headersFor(host), 'content-type': type, 'content-length': bytes.length });
  response.end(request.method === 'HEAD' ? undefined : bytes);
}

/**
 * Serves the page.
 * @param {{ host: string, port: number, live: import('./live.mjs').Live }} options the address to listen on (port 0: any),
 *   and who feeds the browsers
 * @returns {Promise<{ url: string, close(): void }>} rejects with the error of listen(), such as EADDRINUSE
 */
export async function openWeb({ host, port, live }) {
  const files = new Map(
    Object.entries(FILES).map(([path, [file, type]]) => [path, { bytes: readFileSync(file), type }]),
  );
  const server = createServer((request, response) => answer(request, response, files, host));
  // A browser has nothing to say.
  const sockets = new WebSocketServer({ noServer: true, maxPayload: 1024, perMessageDeflate: false });
  server.on('upgrade', (request, socket, head) => {
    socket.on('error', () => {});
    const name = hostOf(request, host);
    const own = name !== undefined && request.headers.origin === `http://${name}`;
    const code =
      request.url !== '/live'
        ? '404 Not Found'
        : !own
          ? '403 Forbidden'
          : live.counts.connected >= MOST_BROWSERS
            ? '503 Service Unavailable'
            : undefined;
    if (code !== undefined) {
      socket.end(`HTTP/1.1 ${code}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n`);
      return;
    }
    sockets.handleUpgrade(request, socket, head, (one) => live.add(one));
  });
  await new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => resolve(undefined));
  });
  const address = /** @type {import('node:net').AddressInfo} */ (server.address());
  const name = isIPv6(address.address) ? `[${address.address}]` : address.address;
  return {
    url: `http://${name}:${address.port}/`,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}
