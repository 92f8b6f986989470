import { readFileSync } from 'node:fs';
import { fileError, readRuleText } from '../steering/file.js';
import { readCapture } from '../steering/pcap.js';
import { errorsOf, problemText, rulesError } from '../steering/problem.js';
import { type CaptureReport, type FlowReport, replay } from '../steering/replay.js';
import type { Rule } from '../steering/rule.js';
import type { RuleSet } from '../steering/set.js';
import type { Context } from './context.js';
import { EXIT, usage } from './exit.js';
import { toSize } from './render.js';

/** Options of `millrace steer validate`. */
export interface ValidateOptions {
  readonly json?: boolean;
  readonly strict?: boolean;
}

/** Options of `millrace steer explain`. */
export interface ExplainOptions {
  readonly json?: boolean;
  readonly pcap?: string;
  readonly packet?: string;
  readonly interface?: string;
}

type Colors = Context['io']['colors'];

/** `millrace steer validate FILE`: what is wrong with a file of rules. Needs no device. */
export async function validate(file: string, options: ValidateOptions, { io }: Context): Promise<number> {
  const { rules, problems } = load(file);
  const errors = errorsOf(problems).length;
  const warnings = problems.length - errors;
  const valid = errors === 0 && (options.strict !== true || warnings === 0);
  if (options.json) {
    await io.line(JSON.stringify({ file, valid, rules: rules.map(ruleJson), problems }));
  } else {
    const { red, yellow } = io.colors;
    for (const problem of problems) {
      await io.line((problem.severity === 'error' ? red : yellow)(problemText(problem)));
    }
    const found = [count(errors, 'error'), count(warnings, 'warning')].join(', ');
    await io.line(`${file}: ${count(rules.length, 'valid rule')}, ${found}`);
  }
  return valid ? EXIT.OK : EXIT.FAILED;
}

/** `millrace steer explain FILE`: which rule takes each packet, and why the others do not. Needs no device. */
export async function explainPackets(
  file: string,
  options: ExplainOptions,
  { io }: Context,
): Promise<number> {
  const { pcap, packet, interface: port } = options;
  if ((pcap === undefined) === (packet === undefined))
    throw usage('Give either --pcap FILE or --packet HEX.');
  const { rules, problems } = load(file);
  if (errorsOf(problems).length > 0) throw rulesError('steer explain', problems);
  const report = replay(rules, packet === undefined ? readCapture(read(pcap!), pcap!) : single(packet), port);
  if (options.json) {
    await io.line(JSON.stringify(reportJson(file, report)));
  } else {
    for (const flow of report.flows) await io.write(flowText(flow, io.colors));
    if (packet === undefined) await io.write(totalsText(report, io.colors));
  }
  return report.totals.some(({ packets }) => packets > 0) ? EXIT.OK : EXIT.NOTHING;
}

function read(file: string): Buffer {
  try {
    return readFileSync(file);
  } catch (cause) {
    throw fileError(file, cause);
  }
}

const load = (file: string): RuleSet => readRuleText(read(file).toString('utf8'), file);

/** A frame from the command line. */
function single(text: string) {
  const hex = text.replace(/^0x|[\s:]/gi, '');
  if (!/^([0-9a-f]{2})+$/i.test(hex))
    throw usage('--packet takes the bytes of an Ethernet frame in hexadecimal.');
  const frame = Buffer.from(hex, 'hex');
  if (frame.length < 14) throw usage(`--packet has ${frame.length} bytes; an Ethernet header alone has 14.`);
  return [
    { number: 1, time: Number.NaN, frame, wireBytes: frame.length, interface: undefined, ethernet: true },
  ];
}

const count = (number: number, one: string): string => `${number} ${one}${number === 1 ? '' : 's'}`;
const actionText = ({ action }: Rule): string => (typeof action === 'object' ? action.to.name : action);
const actionJson = ({ action }: Rule) =>
  typeof action === 'object' ? { to: action.to.name } : { [action]: true };

const ruleJson = (rule: Rule) => ({
  name: rule.name,
  line: rule.position?.line ?? null,
  type: rule.type,
  priority: rule.priority,
  ...actionJson(rule),
  ...(rule.tag === undefined ? {} : { tag: rule.tag }),
  ...(rule.dontTrap ? { dontTrap: true } : {}),
});

function reportJson(file: string, { flows, totals, ...sums }: CaptureReport) {
  return {
    file,
    ...sums,
    flows: flows.map(({ explanation: { text, packet, verdicts }, ...rest }) => ({
      packet: text,
      interface: packet.interface ?? null,
      ...rest,
      rules: verdicts.map(({ rule, outcome, why }) => ({
        rule: rule.name,
        line: rule.position?.line ?? null,
        outcome,
        why,
      })),
    })),
    totals: totals.map(({ rule, packets, bytes }) => ({
      rule: rule.name,
      ...actionJson(rule),
      packets,
      bytes,
    })),
  };
}

function flowText(
  { explanation, first, last, packets, bytes }: FlowReport,
  { bold, green, dim }: Colors,
): string {
  const { text, packet, verdicts } = explanation;
  const where = packet.interface === undefined ? '' : ` on ${packet.interface}`;
  const many = packets === 1 ? `packet ${first}` : `${packets} packets (${first} to ${last})`;
  const lines = [`${bold(text)}${where}: ${many}, ${toSize(bytes)}`];
  for (const { rule, outcome, why } of verdicts) {
    const name = `${rule.name}${rule.position === undefined ? '' : ` (line ${rule.position.line})`}`;
    const acts = outcome === 'taken' || outcome === 'dropped' || outcome === 'counted';
    lines.push(
      acts
        ? green(`  ${outcome} by ${name} -> ${actionText(rule)}: ${why}`)
        : dim(`  not by ${name}: ${why}`),
    );
  }
  return `${lines.join('\n')}\n`;
}

function totalsText(
  { packets, bytes, unreadable, untouched, totals }: CaptureReport,
  { bold }: Colors,
): string {
  const width = Math.max(4, ...totals.map(({ rule }) => rule.name.length));
  const rows = totals.map(
    ({ rule, packets, bytes }) =>
      `${rule.name.padEnd(width)}  ${String(packets).padStart(9)}  ${toSize(bytes).padStart(10)}  ${actionText(rule)}`,
  );
  return [
    '',
    bold(`${'RULE'.padEnd(width)}    PACKETS       BYTES  TO`),
    ...rows,
    '',
    `${count(packets, 'packet')}, ${toSize(bytes)}; ${untouched} that no rule takes or drops, ${unreadable} that are no Ethernet frames`,
    '',
  ].join('\n');
}
