/// <reference lib="dom" />
/** The fan-out example's page in Chromium. */
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { which } from '../../scripts/setup.mjs';
import { Fanout } from '../support/fanout.js';

let fanout: Fanout;
let browser: Browser;
let page: Page;
/** What the console said, and what was thrown. */
let said: string[];

beforeEach(async () => {
  fanout = new Fanout();
  browser = await chromium.launch({
    executablePath: which('chromium')!,
    timeout: 0,
    // Root has no sandbox; and /dev/shm may be small.
    args: ['--no-sandbox', '--disable-dev-shm-usage'],
  });
  page = await browser.newPage();
  // The test's own time limit ends what does not happen.
  page.setDefaultTimeout(0);
  said = [];
  page.on('console', (message) => said.push(`${message.type()}: ${message.text()}`));
  page.on('pageerror', (error) => said.push(String(error)));
});
afterEach(async () => {
  await browser.close();
  expect(await fanout.end()).toEqual([]);
});

const connected = (state: string) => page.locator(`#status[data-state="${state}"]`).waitFor();
const cells = (table: string, column: number) =>
  page.locator(`#${table} tbody tr:not([hidden]) td:nth-child(${column})`).allTextContents();
const until = (condition: (argument: string) => boolean, argument = '') =>
  page.waitForFunction(condition, argument);
/** Whether each chart has drawn lines in colours. */
const drawn = (charts: string) =>
  Array.from(document.querySelectorAll<HTMLCanvasElement>(`${charts} canvas`)).every((canvas) => {
    const { width, height } = canvas;
    const copy = new OffscreenCanvas(width, height).getContext('2d')!;
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, width, height);
    for (let at = 0; at < data.length; at += 4) {
      const [red, green, blue, alpha] = [data[at]!, data[at + 1]!, data[at + 2]!, data[at + 3]!];
      if (alpha === 255 && Math.max(red, green, blue) - Math.min(red, green, blue) > 80) return true;
    }
    return false;
  });

test('with nothing to show, then with data, without the service, and with it again', async () => {
  const url = await fanout.service();
  await page.goto(url);
  await connected('connected');
  expect(await cells('rules-table', 1)).toEqual(['currencies', 'metals', 'energy']);
  expect(await cells('rules-table', 7)).toEqual(['0', '0', '0']);
  expect(await cells('subscribers-table', 1)).toEqual(['No subscriber has reported yet.']);

  fanout.subscriber('fast');
  fanout.subscriber('<b>slow</b>', '--policy', 'latest-by:symbol', '--delay', '5');
  const sender = await fanout.sender(2000);
  await fanout.state(({ subscribers }) => subscribers.length === 2);
  sender.send('begin');
  await until(drawn, '#rules-charts');
  await until(drawn, '#subscribers-charts');
  expect(await page.locator('.plot p:not([hidden])').count()).toBe(0);
  // Names are text, whatever is in them.
  expect(await cells('subscribers-table', 1)).toEqual(['<b>slow</b>', 'fast']);
  await until(() => {
    const drops = document.querySelector('#subscribers-table tbody tr:not([hidden]) td:nth-child(8)');
    return Number(drops?.textContent?.replaceAll(',', '')) > 100;
  });
  expect(said).toEqual([]);

  await fanout.kill();
  await connected('disconnected');
  expect(await page.locator('#notice').textContent()).toMatch(/^The connection to the service was lost/);
  await fanout.service(Number(new URL(url).port));
  await connected('connected');
  expect(await page.locator('#notice').isVisible()).toBe(false);
  await until(() => {
    const packets = document.querySelector('#rules-table tbody tr:not([hidden]) td:nth-child(7)');
    return Number(packets?.textContent?.replaceAll(',', '')) > 0;
  });
  // The browser itself says that nobody answered; the page has nothing to say.
  expect(said.filter((line) => !/^error: WebSocket connection to .* failed/.test(line))).toEqual([]);
});

test('a bad edit of the rules shows', async () => {
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.goto(await fanout.service());
  await connected('connected');
  fanout.edit('rules: [{ name: broken }]');
  await page.locator('#notice', { hasText: 'Rules: they stay as they were' }).waitFor();
  fanout.edit(fanout.rulesText);
  await page.locator('#notice').waitFor({ state: 'hidden' });
  await page.emulateMedia({ colorScheme: 'light' });
  // A rate of 0 is a line as well.
  await until(drawn, '#rules-charts figure:first-child');
  expect(said).toEqual([]);
});
