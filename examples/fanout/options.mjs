/** Reading arguments, for all of the example's programs. Exit code 2 for what is wrong with them, as the command has it. */
import { parseArgs } from 'node:util';

/**
 * @param {string} help its first line is shown with a problem
 * @param {string} problem
 * @returns {never}
 */
export function usage(help, problem) {
  console.error(`${problem}\n${help.split('\n')[0]}`);
  return process.exit(2);
}

/**
 * Prints the help and ends, or reads the arguments, or ends with exit code 2.
 * @template {import('node:util').ParseArgsConfig['options']} T
 * @param {string} help
 * @param {string[]} args
 * @param {T} options as parseArgs() takes them
 */
export function readArgs(help, args, options) {
  if (args.includes('--help') || args.includes('-h')) {
    console.log(help);
    process.exit(0);
  }
  try {
    return parseArgs({ args, options, strict: true, allowPositionals: false }).values;
  } catch (error) {
    return usage(help, error instanceof Error ? error.message : String(error));
  }
}

/**
 * A number in a range.
 * @param {string} help
 * @param {string} option
 * @param {string | undefined} text
 * @param {{ least: number, most: number, whole?: boolean }} range
 */
export function numberOf(help, option, text, { least, most, whole = false }) {
  const number = text === undefined || text.trim() === '' ? Number.NaN : Number(text);
  if (number >= least && number <= most && (!whole || Number.isInteger(number))) return number;
  return usage(
    help,
    `--${option} takes a ${whole ? 'whole ' : ''}number from ${least} to ${most}, not '${text}'`,
  );
}

/** Ports of TCP and UDP that one can listen on; 0 is any. */
export const PORTS = { least: 0, most: 65_535, whole: true };
