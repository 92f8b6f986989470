/** The arguments; also read before anything is installed. */
import { accessSync, constants, mkdirSync, statSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { numberOf, usage } from '../fanout/options.mjs';

export const HELP = `Usage: npm run frames -- [FILE] [--seconds N] [--frames N] [--fps N] [--size WxH] [--out DIR] [--json]

One process decodes a picture or a video and publishes full-size RGBA frames as loans. Two others look at the publisher's own
pages: one computes a histogram of each frame, one a thumbnail PNG. Ends by itself with a table.
  FILE          a picture (JPEG, PNG, WebP, AVIF, TIFF, GIF; page by page if it has several), or a video if ffmpeg is installed;
                without one, a moving sample is drawn
  --seconds N   how long, 0.1 to 3600 (default 5, or 3600 with --frames)
  --frames N    how many frames at most, 1 to 1000000
  --fps N       so many frames per second at most, 0.1 to 1000 (default: as many as the slowest subscriber takes)
  --size WxH    pixels of a frame, 1x1 to 16384x16384 (default: of the file; 1920x1080 of the sample)
  --out DIR     for the thumbnails and the histograms (default: a new folder for temporary files)
  --json        print the result as JSON
  --yes         of npm run: install missing Debian packages with sudo (root does so without being asked)
Exit code: 0 if nothing was lost, 1 if something was or this machine lacks something, 2 for a wrong argument or file, 130 after Ctrl-C.`;

/**
 * @param {string} problem
 * @returns {never}
 */
const wrong = (problem) => usage(HELP, `frames: ${problem}`);

/** @param {string[]} args */
function parse(args) {
  const text = { type: /** @type {const} */ ('string') };
  const flag = { type: /** @type {const} */ ('boolean'), default: false };
  try {
    return parseArgs({
      args,
      allowPositionals: true,
      options: {
        ...{ seconds: text, frames: text, fps: text, size: text, out: text },
        ...{ json: flag, help: { ...flag, short: 'h' } },
      },
    });
  } catch (error) {
    return wrong(error instanceof Error ? error.message : String(error));
  }
}

/** @param {string | undefined} text */
function sizeOf(text) {
  if (text === undefined) return undefined;
  const [, width = 0, height = 0] = (/^(\d+)x(\d+)$/.exec(text) ?? []).map(Number);
  if (width >= 1 && height >= 1 && width <= 16_384 && height <= 16_384) return { width, height };
  return wrong(`--size takes WIDTHxHEIGHT, 1x1 to 16384x16384, not '${text}'`);
}

/**
 * What can be said of a path only by trying.
 * @param {() => void} attempt
 * @param {(why: string) => string} problem
 */
function tried(attempt, problem) {
  try {
    attempt();
  } catch (error) {
    wrong(problem(error instanceof Error ? error.message : String(error)));
  }
}

/**
 * Reads the arguments; ends the process when they are wrong (2), or when help is asked for (0).
 * @param {string[]} args
 */
export function framesOptions(args) {
  const { values, positionals } = parse(args);
  if (values.help) {
    console.log(HELP);
    process.exit(0);
  }
  const [file, more] = positionals;
  if (more !== undefined) wrong(`one file at a time, not also '${more}'`);
  if (file !== undefined) {
    const check = () => {
      accessSync(file, constants.R_OK);
      if (!statSync(file).isFile()) throw new Error('it is no regular file');
    };
    tried(check, (why) => `${file} can't be read: ${why}`);
  }
  const { out } = values;
  if (out !== undefined) {
    const make = () => {
      mkdirSync(out, { recursive: true });
      accessSync(out, constants.W_OK);
    };
    tried(make, (why) => `nothing can be written to ${out}: ${why}`);
  }
  /**
   * @param {'seconds' | 'frames' | 'fps'} name
   * @param {{ least: number, most: number, whole?: boolean }} range
   */
  const given = (name, range) =>
    values[name] === undefined ? undefined : numberOf(HELP, name, values[name], range);
  const frames = given('frames', { least: 1, most: 1_000_000, whole: true });
  return {
    ...{ file, frames, out, size: sizeOf(values.size), json: values.json === true },
    seconds: given('seconds', { least: 0.1, most: 3600 }) ?? (frames === undefined ? 5 : 3600),
    fps: given('fps', { least: 0.1, most: 1000 }),
  };
}
