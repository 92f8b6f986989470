/** Videos, by ffmpeg: it writes frames to a pipe, and they are read from there into the loan. */
import { spawn, spawnSync } from 'node:child_process';
import { closeSync, constants, mkdtempSync, openSync, read, readSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Problem, WRONG } from './problem.mjs';

const readInto = promisify(read);

/** How files of the common containers begin: where, and with what. */
const CONTAINERS = /** @type {const} */ ([
  [4, 'ftyp', 'MP4 or QuickTime'],
  [0, '\x1aE\xdf\xa3', 'Matroska or WebM'],
  [8, 'AVI ', 'AVI'],
  [0, 'OggS', 'Ogg'],
  [0, '\0\0\x01\xba', 'MPEG'],
  [0, 'FLV', 'FLV'],
]);

/** @param {string} file */
function containerOf(file) {
  const fd = openSync(file, 'r');
  const head = Buffer.alloc(16);
  readSync(fd, head);
  closeSync(fd);
  return CONTAINERS.find(([at, magic]) => head.toString('latin1', at, at + magic.length) === magic)?.[2];
}

/**
 * @param {string} program
 * @param {string[]} args
 */
const run = (program, args) => spawnSync(program, args, { encoding: 'utf8', maxBuffer: 2 ** 20 });

/**
 * The last thing that a program said, without the address of the decoder that ffmpeg puts in front.
 * @param {string} text
 */
const lastLine = (text) => (text.trim().split('\n').at(-1) ?? '').replace(/^\[\S+ @ \w+\] /, '');

/**
 * A pipe whose ends are files of this process: other than the streams of child_process, it can be read from into memory of
 * our choice. @returns its reading and its writing end
 */
function makePipe() {
  const folder = mkdtempSync(join(tmpdir(), 'millrace-pipe-'));
  try {
    const path = join(folder, 'frames');
    const made = run('mkfifo', [path]);
    if (made.status !== 0)
      throw new Problem(`a pipe can't be made in ${folder}: ${made.error?.message ?? made.stderr.trim()}`);
    // A reader that does not wait lets the writer open it; then a reader can be opened that does wait.
    const opener = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const writer = openSync(path, constants.O_WRONLY);
    const reader = openSync(path, constants.O_RDONLY);
    closeSync(opener);
    return { reader, writer };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * The size of its frames, as they are shown.
 * @param {string} file
 */
function shapeOf(file) {
  const entries = 'stream=width,height:stream_side_data=rotation';
  const args = ['-v', 'error', '-select_streams', 'v:0', '-show_entries', entries, '-of', 'json', file];
  const probed = run('ffprobe', args);
  if (probed.error) {
    const container = containerOf(file);
    const what = container
      ? `${file} is a video (${container}), and videos are decoded by ffmpeg`
      : `${file} is no picture that sharp can read (JPEG, PNG, WebP, AVIF, TIFF, GIF, SVG); if it is a video, it is decoded by ffmpeg`;
    throw new Problem(
      `${what}, which can't be run (${probed.error.message}). Install it: sudo apt-get install ffmpeg`,
      container ? undefined : WRONG,
    );
  }
  const [stream] = probed.status === 0 ? (JSON.parse(probed.stdout).streams ?? []) : [];
  if (!(stream?.width > 0 && stream.height > 0)) {
    throw new Problem(
      `${file} is neither a picture that sharp can read nor a video that ffmpeg can: ${lastLine(probed.stderr) || 'it has no video stream'}. Name another file.`,
      WRONG,
    );
  }
  const turned = (stream.side_data_list ?? []).some(
    (/** @type {any} */ data) => Math.abs(data.rotation ?? 0) % 180 === 90,
  );
  return turned
    ? { width: stream.height, height: stream.width }
    : { width: stream.width, height: stream.height };
}

/**
 * @param {string} file
 * @param {{ width: number, height: number } | undefined} size
 */
export function videoSource(file, size) {
  const own = shapeOf(file);
  const { width, height } = size ?? own;
  const { reader, writer } = makePipe();
  const scale = size === undefined ? [] : ['-vf', `scale=${width}:${height}`];
  const input = ['-nostdin', '-v', 'error', '-i', file, '-map', '0:v:0'];
  const output = ['-f', 'rawvideo', '-pix_fmt', 'rgba', 'pipe:1'];
  const child = spawn('ffmpeg', [...input, ...scale, ...output], { stdio: ['ignore', writer, 'pipe'] });
  closeSync(writer);
  let said = '';
  child.stderr?.setEncoding('utf8').on('data', (text) => {
    said = (said + text).slice(-4096);
  });
  const ended = new Promise((resolve) => {
    child.on('error', (error) => resolve(error.message));
    // It ends with 0 for a file that is cut off or damaged, too, and shows what it could decode of it: but it says so.
    child.on('close', (code) => resolve(lastLine(said) || (code === 0 ? '' : `exit code ${code}`)));
  });
  return {
    ...{ width, height, name: `${file} (video)` },
    how: 'decoded by ffmpeg, and read from its pipe straight into the loan',
    /**
     * @param {Uint8Array} into
     * @returns {Promise<boolean>} false after the last one
     */
    async next(into) {
      let got = 0;
      while (got < into.length) {
        const { bytesRead } = await readInto(reader, into, got, into.length - got, null);
        if (bytesRead === 0) break;
        got += bytesRead;
      }
      if (got === into.length) return true;
      const why = (await ended) || (got > 0 ? 'it ended within a frame' : '');
      if (why !== '')
        throw new Problem(`${file} can't be decoded: ffmpeg says: ${why}. Is it complete?`, WRONG);
      return false;
    },
    close() {
      // A read that waits for it ends then, too.
      child.kill('SIGKILL');
    },
  };
}
