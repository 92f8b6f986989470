/** The example frames, as its users run it. */
import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import sharp from 'sharp';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Place, Running, root } from '../support/cli-process.js';

const program = join(root, 'examples', 'frames', 'run.mjs');

let place: Place;
/** For files of the test; also of what is temporary. */
let files: string;
let out: string;
beforeEach(() => {
  place = new Place();
  files = join(place.folder, '..', `${place.folder.split('/').at(-1)}-files`);
  out = join(files, 'out');
  for (const folder of [files, join(files, 'tmp'), join(files, 'bin')]) mkdirSync(folder);
  place.env.TMPDIR = join(files, 'tmp');
});
afterEach(async () => {
  const left = place.content;
  await place.dispose();
  const temporary = readdirSync(join(files, 'tmp'));
  spawnSync('rm', ['-r', files]);
  expect({ left, temporary }).toEqual({ left: [], temporary: [] });
});

/** Runs the example to its end, and reads what it printed as JSON. */
async function frames(...words: string[]) {
  const running = place.node(program, '--json', '--out', out, ...words);
  const { code } = await running.finish();
  expect({ code, err: running.err }).toEqual({ code: 0, err: '' });
  return JSON.parse(running.out);
}

/** How the example ends that can't do what it is asked for. */
async function refused(...words: string[]) {
  const running = place.node(program, ...words);
  const { code } = await running.finish();
  return { code, err: running.err, out: running.out };
}

/** Programs of the test's own in place of ffmpeg, which need not be installed. */
function fake(name: string, source: string): void {
  writeFileSync(join(files, 'bin', name), `#!${process.execPath}\n${source}`, { mode: 0o755 });
  place.env.PATH = `${join(files, 'bin')}:${process.env.PATH}`;
}

/** Histograms by another way than the example's: channel by channel, level by level. */
function histograms(pixels: Uint8Array, times: number) {
  const values = (of: (r: number, g: number, b: number) => number) => {
    const counts = new Array<number>(256).fill(0);
    for (let at = 0; at < pixels.length; at += 4) {
      counts[of(pixels[at]!, pixels[at + 1]!, pixels[at + 2]!)]! += times;
    }
    return counts;
  };
  return {
    luma: values((r, g, b) => Math.round(0.2126 * r + 0.7152 * g + 0.0722 * b)),
    red: values((r) => r),
    green: values((_, g) => g),
    blue: values((_r, _g, b) => b),
  };
}

const rgba = (width: number, height: number) => ({ raw: { width, height, channels: 4 as const } });
const written = () => readdirSync(out).sort();
const each = () =>
  readFileSync(join(out, 'histograms.ndjson'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

describe('frames', () => {
  test('of a PNG: nothing copied, nothing lost, the right histogram and thumbnails', async () => {
    const pixels = Uint8Array.from({ length: 4 * 64 * 48 }, (_, i) => (i * 31 + (i >> 6)) & 255);
    const png = join(files, 'a.png');
    await sharp(pixels, rgba(64, 48)).png().toFile(png);
    const result = await frames(png, '--frames', '6');
    expect(result).toMatchObject({ ok: true, frames: 6, copies: 0, publisher: { copies: 0 } });
    expect(result.source).toMatchObject({ width: 64, height: 48, bytes: pixels.length });
    expect(result.subscribers).toMatchObject(
      ['histogram', 'thumbnail'].map((subscriber) => ({
        subscriber,
        frames: 6,
        lost: 0,
        missing: 0,
        copies: 0,
      })),
    );
    expect(JSON.parse(readFileSync(join(out, 'histogram.json'), 'utf8'))).toEqual({
      ...{ frames: 6, pixels: 6 * 64 * 48 },
      ...histograms(pixels, 6),
    });
    expect(each()).toEqual([1, 2, 3, 4, 5, 6].map((frame) => ({ frame, ...histograms(pixels, 1) })));
    const thumbnails = [1, 2, 3, 4, 5, 6].map((n) => `frame-00000${n}.png`);
    expect(written()).toEqual([...thumbnails, 'histogram.json', 'histograms.ndjson']);
    for (const name of thumbnails) {
      // So small a picture is its own thumbnail.
      const { data, info } = await sharp(join(out, name)).raw().toBuffer({ resolveWithObject: true });
      expect(info).toMatchObject({ width: 64, height: 48, channels: 4 });
      expect(Buffer.compare(data, pixels)).toBe(0);
    }
  });

  test('of an animated GIF: page by page, in the size that is asked for', async () => {
    const [width, height] = [20, 10];
    const pages = Uint8Array.from({ length: 4 * width * height * 2 }, (_, i) =>
      i % 4 === 3 || i % 4 === (i < 4 * width * height ? 0 : 2) ? 255 : 0,
    );
    const gif = join(files, 'a.gif');
    await sharp(pages, { raw: { width, height: 2 * height, channels: 4, pageHeight: height } })
      .gif()
      .toFile(gif);
    const result = await frames(gif, '--frames', '4', '--size', '400x200');
    expect(result).toMatchObject({ ok: true, frames: 4, copies: 0, source: { width: 400, height: 200 } });
    const all = 400 * 200;
    expect(each().map(({ red, blue }) => [red[255], blue[255]])).toEqual([
      ...[
        [all, 0],
        [0, all],
      ],
      ...[
        [all, 0],
        [0, all],
      ],
    ]);
    const { dominant } = await sharp(join(out, 'frame-000002.png')).stats();
    expect(await sharp(join(out, 'frame-000002.png')).metadata()).toMatchObject({ width: 160, height: 80 });
    expect(dominant.b).toBeGreaterThan(200);
    expect(dominant.r).toBeLessThan(50);
  });

  test('of a video: what ffmpeg writes, read into the loans, to its end', async () => {
    fake(
      'ffprobe',
      `console.log('{"streams":[{"width":30,"height":50,"side_data_list":[{"rotation":-90}]}]}');`,
    );
    // Three frames of 50 x 30 in pieces that are none.
    fake(
      'ffmpeg',
      `const frames = Buffer.concat([10, 20, 30].map((level) => Buffer.alloc(4 * 50 * 30, level)));
       for (let at = 0; at < frames.length; at += 1999) require('fs').writeSync(1, frames.subarray(at, at + 1999));`,
    );
    const video = join(files, 'a.mp4');
    writeFileSync(video, '\0\0\0\x18ftypisom');
    const result = await frames(video, '--seconds', '60');
    expect(result).toMatchObject({ ok: true, frames: 3, copies: 0, source: { width: 50, height: 30 } });
    expect(each().map(({ luma }) => luma.indexOf(50 * 30))).toEqual([10, 20, 30]);
  });

  test('of a real video: whole, and cut off', async (context) => {
    const video = join(files, 'a.mkv');
    // Ten frames each of two colours, two seconds.
    const input = ['red', 'blue'].flatMap((colour) => [
      '-f',
      'lavfi',
      '-i',
      `color=${colour}:s=96x64:r=10:d=1`,
    ]);
    const output = ['-filter_complex', 'concat=n=2', '-c:v', 'mpeg4', '-g', '1', video];
    const made = spawnSync('ffmpeg', ['-v', 'error', ...input, ...output], { encoding: 'utf8' });
    if (made.error) context.skip('not run: ffmpeg decodes a real video (apt-get install ffmpeg)');
    expect(made.stderr).toBe('');
    const result = await frames(video, '--seconds', '60');
    expect(result).toMatchObject({ ok: true, frames: 20, copies: 0, source: { width: 96, height: 64 } });
    const most = (counts: number[]) => counts.indexOf(Math.max(...counts));
    // Through YUV, so that the levels are about the colours'.
    for (const [at, { red, blue }] of each().entries()) {
      expect(Math.abs(most(red) - (at < 10 ? 255 : 0))).toBeLessThan(8);
      expect(Math.abs(most(blue) - (at < 10 ? 0 : 255))).toBeLessThan(8);
    }
    const whole = readFileSync(video);
    writeFileSync(video, whole.subarray(0, whole.length >> 1));
    const { code, err } = await refused(video, '--out', out);
    expect(err).toMatch(/^frames: \S+a\.mkv can't be decoded: ffmpeg says: .*\. Is it complete\?\n$/);
    expect(code).toBe(2);
  });

  test('of a video that ffmpeg gives up on', async () => {
    fake('ffprobe', `console.log('{"streams":[{"width":16,"height":16}]}');`);
    fake(
      'ffmpeg',
      `console.error('moov atom not found'); process.exitCode = 1; process.stdout.write(Buffer.alloc(1500));`,
    );
    const video = join(files, 'a.mp4');
    writeFileSync(video, '\0\0\0\x18ftypisom');
    const { code, err } = await refused(video);
    expect(err).toBe(
      `frames: ${video} can't be decoded: ffmpeg says: moov atom not found. Is it complete?\n`,
    );
    expect(code).toBe(2);
  });

  test('the table, and the sample that is drawn when no file is named', async () => {
    const running = place.node(program, '--frames', '3', '--fps', '100', '--size', '320x200', '--out', out);
    expect(await running.finish()).toMatchObject({ code: 0 });
    expect(running.err).toBe('');
    expect(running.out).toMatch(/^a moving sample: 320 x 200, 0\.3 MB a frame, drawn into the loan\n/);
    for (const row of [/^histogram +3 +0 /m, /^thumbnail +3 +0 /m, /^publisher +3 .* 0$/m, /^ +0-15 /m])
      expect(running.out).toMatch(row);
    expect(running.out).toMatch(/GB\/s handed over, 0 copies made on the way\. Nothing was lost\.\n$/);
    expect(running.out).toContain(join(out, 'histogram.json'));
  });

  test('Ctrl-C leaves nothing', async () => {
    const running = new Running(
      spawn(process.execPath, [program, '--seconds', '600', '--size', '640x360'], {
        env: place.env,
        stdio: 'pipe',
        detached: true,
      }),
    );
    await running.until('frames come', () => / frames .* thumbnail [1-9]/.test(running.out));
    process.kill(-running.pid, 'SIGINT');
    expect(await running.finish()).toEqual({ code: 130, signal: null });
    expect(running.err).toBe('');
  });
});

describe('what can not be done', () => {
  test('a broken picture, and a file that is none', async () => {
    const png = join(files, 'a.png');
    const noise = Uint8Array.from({ length: 4 * 64 * 64 }, (_, i) => (i * i * 7919) >> 3);
    const whole = await sharp(noise, rgba(64, 64)).png().toBuffer();
    writeFileSync(png, whole.subarray(0, whole.length >> 1));
    const broken = await refused(png);
    expect(broken.err).toMatch(/^frames: \S+a\.png can't be decoded: .*\. Is it complete\? .*\n$/);
    expect(broken.code).toBe(2);
    const text = join(files, 'a.txt');
    writeFileSync(text, 'no picture at all');
    place.env.PATH = join(files, 'bin');
    const other = await refused(text);
    expect(other.err).toMatch(/is no picture that sharp can read .* sudo apt-get install ffmpeg\n$/);
    expect(other.code).toBe(2);
    writeFileSync(text, '\0\0\0\x18ftypisom');
    const video = await refused(text);
    expect(video.err).toMatch(/is a video \(MP4 or QuickTime\).* sudo apt-get install ffmpeg\n$/);
    expect(video.code).toBe(1);
  });

  test('wrong arguments', async () => {
    for (const [words, why] of [
      [['/nowhere/a.png'], /can't be read: ENOENT/],
      [[files], /can't be read: it is no regular file/],
      [['--size', '0x7'], /--size takes WIDTHxHEIGHT/],
      [['--fps', 'fast'], /--fps takes a number from 0\.1 to 1000, not 'fast'/],
      [['--colour'], /Unknown option '--colour'/],
    ] as const) {
      const { code, err } = await refused(...words);
      expect(err).toMatch(why);
      expect(code).toBe(2);
    }
  });

  test('without sharp it says how to get it', async () => {
    const hook = join(files, 'hook.mjs');
    const source = `export const resolve = (name, context, next) =>
      name === 'sharp' ? Promise.reject(new Error("Cannot find package 'sharp'")) : next(name, context);`;
    writeFileSync(
      hook,
      `import { register } from 'node:module'; register(${JSON.stringify(`data:text/javascript,${encodeURIComponent(source)}`)});`,
    );
    place.env.NODE_OPTIONS = `--import=${hook}`;
    const { code, err } = await refused('--out', out);
    expect(err).toBe(
      `frames: pictures are decoded and written by sharp, which can't be loaded (Cannot find package 'sharp'). Run "npm ci" in this checkout, or "npm install sharp" in yours.\n`,
    );
    expect(code).toBe(1);
  });

  test('shared memory that is too small', async (context) => {
    const mount = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=32m', 'tmpfs', place.folder]);
    if (mount.status !== 0) context.skip('this user may not mount');
    try {
      const { code, err } = await refused('--out', out);
      expect(err).toMatch(
        /^frames: two frames of 8\.3 MB need \d+\.\d MB of shared memory, and \S+ has \d+\.\d MB free\. .*--size.*--shm-size.*\n$/,
      );
      expect(code).toBe(1);
    } finally {
      spawnSync('umount', [place.folder]);
    }
  });
});
