/** The demo's arguments; also read by scripts/demo.mjs, before anything is installed. */
import { accessSync, constants, statSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

/** Files of every Debian machine, the longest first. */
const FILES = ['/usr/share/common-licenses/GPL-3', '/usr/share/common-licenses/Apache-2.0', '/etc/services'];

/**
 * @param {string} problem
 * @returns {never}
 */
function usage(problem) {
  console.error(`${problem}\nusage: npm run demo -- [--file FILE] [--seconds N] [--json]`);
  return process.exit(2);
}

/** @param {string} path */
const readable = (path) => {
  try {
    accessSync(path, constants.R_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
};

/** @param {string[]} args */
function parse(args) {
  try {
    return parseArgs({
      args,
      options: {
        file: { type: 'string' },
        seconds: { type: 'string', default: '5' },
        json: { type: 'boolean', default: false },
      },
    }).values;
  } catch (error) {
    return usage(error instanceof Error ? error.message : String(error));
  }
}

/**
 * Reads the arguments; ends the process with exit code 2 and the usage when they are wrong.
 * @param {string[]} args
 */
export function demoOptions(args) {
  const values = parse(args);
  const seconds = Number(values.seconds);
  if (!(seconds >= 1 && seconds <= 3600)) {
    usage(`--seconds takes a number from 1 to 3600, not '${values.seconds}'`);
  }
  const file = values.file ?? FILES.find(readable) ?? fileURLToPath(import.meta.url);
  if (!readable(file)) usage(`${file} is not a file that can be read`);
  return { file, seconds, json: values.json === true };
}
