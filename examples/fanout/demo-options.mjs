/** The demo's arguments; also read by scripts/fanout-demo.mjs, before anything is installed. */
import { numberOf, PORTS, readArgs } from './options.mjs';

export const HELP = `usage: npm run fanout:demo -- [--seconds N] [--rate N] [--http PORT] [--loopback] [--keep-open] [--json] [--yes]

Real UDP multicast senders, the fan-out service, and four subscribers in processes of their own: two that keep up (one by
pattern), a slow one that conflates by symbol, a slow one that drops the oldest. Shows a live table and a page with charts, and
ends by itself with what each rule and subscriber got.
  --seconds N   how long, 1 to 3600 (default 15)
  --rate N      quotes per second, of three feeds together, 10 to 100000 (default 3000)
  --http PORT   of the page, on this host only (default 0: any that is free)
  --loopback    senders on the loopback interface; else they have a network namespace of their own, which takes root
  --keep-open   does not end by itself: look at the page, then Ctrl-C
  --json        print the result as JSON, and the set-up on standard error
  --yes         install missing Debian packages with sudo (root does so without being asked)
Environment: MILLRACE_NO_APT=1 never runs apt-get, and prints the line to run instead.
Exit code: 0 if those that keep up lost nothing, 1 otherwise, 2 for a wrong argument, 130 after Ctrl-C, 143 after TERM.`;

/**
 * Reads the arguments; ends the process with exit code 2 and the usage when they are wrong.
 * @param {string[]} args
 */
export function demoOptions(args) {
  const values = readArgs(HELP, args, {
    seconds: { type: 'string', default: '15' },
    rate: { type: 'string', default: '3000' },
    http: { type: 'string', default: '0' },
    loopback: { type: 'boolean', default: false },
    'keep-open': { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  });
  return {
    seconds: numberOf(HELP, 'seconds', values.seconds, { least: 1, most: 3600 }),
    rate: numberOf(HELP, 'rate', values.rate, { least: 10, most: 100_000 }),
    http: numberOf(HELP, 'http', values.http, PORTS),
    loopback: values.loopback === true,
    keepOpen: values['keep-open'] === true,
    json: values.json === true,
  };
}
