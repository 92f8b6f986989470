import Table from 'cli-table3';
import { otherFabrics, otherLayouts } from '../cluster/layouts.js';
import { baseFolder, rootFolder } from '../cluster/paths.js';
import { listDomains } from '../cluster/registry.js';
import { type Survey, type SurveyedMember, survey } from '../cluster/survey.js';
import { loadNative } from '../native/load.js';
import type { Context } from './context.js';
import { EXIT } from './exit.js';
import type { CommonOptions } from './options.js';
import { toSize } from './render.js';
import { readReport } from './reports.js';

/** Options of `millrace ls`. */
export interface LsOptions extends CommonOptions {
  readonly all?: boolean;
}

/** How long a member has to answer, in ms, unless --timeout says. */
const ANSWER_MS = 1000;

/** `millrace ls`: members, channels and subscribers, asked of the members themselves; does not join. */
export async function ls(options: LsOptions, { io }: Context): Promise<number> {
  const native = loadNative();
  const base = baseFolder(io.streams.env);
  const domains = options.all ? listDomains(base) : [options.domain];
  const surveys: Survey[] = [];
  for (const domain of domains) {
    surveys.push(await survey(native, base, domain, options.timeout ?? ANSWER_MS));
  }
  const found = surveys.filter(({ members, dead }) => members.length + dead.length > 0);
  const others = domains.flatMap((domain) => otherLayouts(native, base, domain));
  const fabrics = otherFabrics(native, base);
  if (options.json) {
    await io.line(
      JSON.stringify({
        folder: rootFolder(base),
        domains: found,
        otherLayouts: others,
        otherFabrics: fabrics,
      }),
    );
  } else {
    let first = true;
    for (const one of found) {
      await io.write(`${first ? '' : '\n'}${describe(one, io.colors)}`);
      first = false;
    }
    for (const { layout, folder, members } of others) {
      io.note(
        `${members} members in ${folder} use another version of millrace (layout ${layout}); not seen from here`,
      );
    }
    for (const { layout, folder } of fabrics) {
      io.note(
        `processes in ${folder} use another version of the software device (layout ${layout}; here it is ${native.fabricLayout}); not seen from here`,
      );
    }
    if (found.length === 0) {
      io.note(
        options.all
          ? `no domains in ${rootFolder(base)}`
          : `no members in the domain ${JSON.stringify(options.domain)}`,
      );
    }
  }
  return found.some(({ members }) => members.length > 0) ? EXIT.OK : EXIT.NOTHING;
}

type Colors = Context['io']['colors'];

/** A table without lines: columns apart by two spaces, no colour of its own. */
function table(head: readonly string[], colors: Colors): Table.Table {
  const none = { top: '', 'top-mid': '', 'top-left': '', 'top-right': '', bottom: '', 'bottom-mid': '' };
  return new Table({
    chars: {
      ...none,
      'bottom-left': '',
      'bottom-right': '',
      left: '',
      'left-mid': '',
      mid: '',
      'mid-mid': '',
      right: '',
      'right-mid': '',
      middle: '  ',
    },
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 0 },
    head: head.map((text) => colors.dim(text)),
  });
}

/** Text of another process, without what would move a terminal's cursor. */
function safe(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what must not reach a terminal
  const clean = text.replace(/[\u0000-\u001f\u007f-\u009f]/g, '�');
  return clean.length > 60 ? `${clean.slice(0, 59)}…` : clean;
}

function describe({ domain, members, dead }: Survey, colors: Colors): string {
  const parts = [colors.bold(`domain ${safe(domain)}`)];
  if (members.length > 0) {
    const rows = table(['MEMBER', 'PID', 'INCARNATION', 'SINCE', 'PEERS', 'FAULTS', 'STATE'], colors);
    for (const member of members) rows.push(memberRow(member, colors));
    parts.push(rows.toString());
  }
  const flows = members.flatMap((member) => flowRows(member));
  if (flows.length > 0) {
    const head = [
      'CHANNEL',
      'PUBLISHER',
      'CODEC',
      'SENT',
      'SUBSCRIBER',
      'OVERFLOW',
      'DELIVERED',
      'QUEUED',
      'DROPPED',
      'CREDITS',
    ];
    const rows = table(head, colors);
    for (const row of flows.sort((a, b) => a[0]!.localeCompare(b[0]!))) rows.push(row.map(safe));
    parts.push('', rows.toString());
  }
  const listening = members.flatMap((member) => listenRows(member));
  if (listening.length > 0) {
    const rows = table(['SUBSCRIBES TO', 'MEMBER', 'RECEIVED', 'MISSING', 'UNDECODED'], colors);
    for (const row of listening.sort((a, b) => a[0]!.localeCompare(b[0]!))) rows.push(row.map(safe));
    parts.push('', rows.toString());
  }
  for (const { name, report } of members) {
    const omitted = readReport(report)?.omitted ?? 0;
    if (omitted > 0)
      parts.push(
        '',
        colors.yellow(`${safe(name)} has ${omitted} more channels and patterns than it tells at once`),
      );
  }
  if (dead.length > 0) {
    const some = dead.length === 1 ? 'a dead member' : `${dead.length} dead members`;
    parts.push(
      '',
      colors.yellow(`${some} left files behind; the next member that joins removes them, or millrace clean`),
    );
  }
  // The table pads each line to the width of its columns.
  const text = parts.join('\n');
  return `${text
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n')}\n`;
}

function memberRow(member: SurveyedMember, colors: Colors): string[] {
  const { name, pid, incarnation, started, answer, reason } = member;
  const report = readReport(member.report);
  const states = {
    answered: colors.green('up'),
    silent: colors.yellow('no answer'),
    starting: 'starting',
    failed: colors.red(`no report: ${safe(reason ?? '?')}`),
  };
  return [
    safe(name),
    String(pid),
    String(incarnation),
    started > 0 ? new Date(started).toISOString().replace('T', ' ').slice(0, 19) : '?',
    report === undefined ? '-' : String(report.peers.length),
    report === undefined ? '-' : String(report.faults),
    states[answer],
  ];
}

/** One row for each channel that a member publishes, and each of its subscribers. */
function flowRows(member: SurveyedMember): string[][] {
  const rows: string[][] = [];
  for (const { name, codec, publishing } of readReport(member.report)?.channels ?? []) {
    if (publishing === null) continue;
    const sent = `${publishing.sequence}${publishing.ended === null ? '' : ` (${publishing.ended})`}`;
    if (publishing.subscribers.length === 0) {
      rows.push([name, member.name, codec, sent, '-', '-', '-', '-', String(publishing.dropped), '-']);
    }
    for (const one of publishing.subscribers) {
      rows.push([
        name,
        member.name,
        codec,
        sent,
        one.peer.name,
        typeof one.overflow === 'string' ? one.overflow : `latest by ${one.overflow.latestBy}`,
        String(one.delivered),
        one.queued === 0 ? '0' : `${one.queued} (${toSize(one.queuedBytes)})`,
        String(one.dropped),
        one.credits === null ? '-' : String(one.credits),
      ]);
    }
  }
  return rows;
}

/** One row for each channel or pattern that a member listens to. */
function listenRows(member: SurveyedMember): string[][] {
  const report = readReport(member.report);
  if (report === undefined) return [];
  return [
    ...report.channels
      .filter((channel) => channel.listeners > 0)
      .map(({ name, received, missing, decodeErrors }) => [
        name,
        member.name,
        String(received),
        String(missing),
        String(decodeErrors),
      ]),
    ...report.patterns
      .filter((pattern) => pattern.listeners > 0)
      .map(({ pattern }) => [pattern, member.name, '-', '-', '-']),
  ];
}
