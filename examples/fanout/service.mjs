/**
 * The service: rules steer datagrams of the network into channels, which any number of processes subscribe to.
 *   node examples/fanout/service.mjs --rules examples/fanout/rules.yaml
 */
import { join } from 'millrace';
import { endCleanly, tell } from '../demo/child.mjs';
import { Board, SAMPLE_MS } from './board.mjs';
import { Live } from './live.mjs';
import { numberOf, PORTS, readArgs, usage } from './options.mjs';
import { Reports } from './reports.mjs';
import { Screen, stateLines } from './table.mjs';
import { Upstream } from './upstream.mjs';
import { openWeb } from './web.mjs';

const HELP = `usage: service.mjs --rules FILE [--domain NAME] [--http PORT] [--host ADDRESS]

Brings multicast feeds to any number of processes and browsers of this host.
  --rules FILE     steering rules, YAML or JSON; watched: a good edit is in force at once, a bad one is told and changes nothing
  --domain NAME    where the channels are (default: fanout)
  --http PORT      of the page (default: 8088; 0: any that is free)
  --host ADDRESS   that the page is served on (default: 127.0.0.1, this host only)
Exit code: 130 after Ctrl-C, 143 after a TERM signal, 1 when it cannot start, 2 for a wrong argument.`;

const values = readArgs(HELP, process.argv.slice(2), {
  rules: { type: 'string' },
  domain: { type: 'string', default: 'fanout' },
  http: { type: 'string', default: '8088' },
  host: { type: 'string', default: '127.0.0.1' },
});
const { rules = usage(HELP, 'Which rules? Give --rules FILE'), domain = '', host = '' } = values;
const port = numberOf(HELP, 'http', values.http, PORTS);

const member = await join(domain, { name: 'fanout' });
const live = new Live();
/** @type {{ url: string, close(): void } | undefined} */
let web;
const end = endCleanly(async () => {
  live.close();
  web?.close();
  await member.leave();
});
/** @param {unknown} error */
const fail = (error) => {
  console.error(`fanout: ${error instanceof Error ? error.message : String(error)}`);
  return end(1);
};

const upstream = new Upstream(member);
const board = new Board(member, upstream, new Reports(member));
member.steering.events$.subscribe((event) => {
  const problems =
    event.type === 'rejected'
      ? [`they stay as they were: ${event.error.message}`]
      : upstream.refresh().map((why) => `not published: ${why}`);
  board.problem = problems.join('; ') || null;
  for (const problem of problems) console.error(`fanout: rules: ${problem}`);
  if (event.type === 'loaded')
    for (const { message } of event.warnings) console.error(`fanout: rules: warning: ${message}`);
});

try {
  await member.steering.watch(rules);
  web = await openWeb({ host, port, live });
} catch (error) {
  await fail(error);
}
const screen = new Screen();
if (process.send) await tell({ type: 'open', url: web?.url });
else console.log(`${web?.url}   domain ${domain}, rules ${rules}`);

setInterval(() => {
  const state = board.sample(live.counts);
  live.push(state);
  if (process.send) tell({ type: 'state', state });
  else if (process.stdout.isTTY && state.number % 2 === 0) screen.show(stateLines(state));
}, SAMPLE_MS);
