/** What was measured, as tables and as a page of JSON. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { digits, median } from './figures.mjs';
import { machine, machineLine } from './machine.mjs';

const Table = createRequire(import.meta.url)('cli-table3');

/** A share of all CPUs that others may take before the report says so. */
const BUSY = 0.1;

/**
 * One section's results: `all[table][row][peer]` is the list of what the turns gave, or the reason why there is nothing.
 */
export class Results {
  all = {};

  add(table, row, peer, value) {
    this.all[table] ??= {};
    this.all[table][row] ??= {};
    const peers = this.all[table][row];
    if (typeof value === 'string') {
      if (!Array.isArray(peers[peer])) peers[peer] = value;
    } else if (Array.isArray(peers[peer])) peers[peer].push(value);
    else peers[peer] = [value];
  }

  /** The median of the turns; undefined where nothing was measured. */
  value(table, row, peer) {
    const list = this.all[table]?.[row]?.[peer];
    return Array.isArray(list) ? median(list) : undefined;
  }

  medians() {
    const over = (object, call) =>
      Object.fromEntries(Object.entries(object).map(([key, value]) => [key, call(value)]));
    return over(this.all, (rows) =>
      over(rows, (peers) => over(peers, (list) => (Array.isArray(list) ? median(list) : list))),
    );
  }
}

/** A table of a section: a row for each case, a column for each peer; median, least and most, and how many times as good ours is. */
function show({ peers: titles }, { title, ours, show, less }, rows, reasons) {
  const peers = Object.keys(titles).filter((peer) => Object.values(rows).some((row) => peer in row));
  const table = new Table({
    style: { head: [], border: [] },
    head: [title, ...peers.map((peer) => titles[peer])],
    colAligns: ['left', ...peers.map(() => 'right')],
  });
  for (const [name, row] of Object.entries(rows)) {
    const own = Array.isArray(row[ours]) ? median(row[ours]) : undefined;
    const cells = peers.map((peer) => {
      const list = row[peer];
      if (list === undefined) return '';
      if (!Array.isArray(list)) {
        reasons.set(list, [...(reasons.get(list) ?? []), [title, name, titles[peer]].join(', ')]);
        return 'not run';
      }
      const lines = [show(median(list))];
      if (list.length > 1) lines.push(`${show(Math.min(...list))} .. ${show(Math.max(...list))}`);
      const times = less ? median(list) / own : own / median(list);
      if (peer !== ours && Number.isFinite(times)) lines.push(`${digits(times)} x`);
      return lines.join('\n');
    });
    table.push([name, ...cells]);
  }
  console.log(table.toString());
}

/** @param sections of each {section, results}. @returns where it was written */
export function report(sections, { quick, turns, loads, missing }) {
  const page = {
    date: new Date().toISOString(),
    quick,
    turns,
    machine: machine(),
    loads,
    missing,
    sections: {},
  };
  console.log(machineLine());
  console.log(
    'N x: how many times as good as that the first column is, or the one that is named millrace.\n',
  );
  for (const { section, results } of sections) {
    console.log(section.title);
    const reasons = new Map();
    for (const [key, table] of Object.entries(section.tables))
      if (results.all[key] !== undefined) show(section, table, results.all[key], reasons);
    for (const [why, cells] of reasons) {
      console.log(`not run, ${why}: ${cells.join('; ').replaceAll('\n', ' ')}`);
    }
    const marks = section.marks((...at) => results.value(...at));
    for (const { mark, measured, met } of marks)
      console.log(`${met ? 'met    ' : 'not met'}  ${mark}: ${measured}`);
    console.log('');
    page.sections[section.name] = { medians: results.medians(), marks, turnsOf: results.all };
  }
  for (const [peer, why] of Object.entries(missing)) console.log(`not run: ${peer} (${why})`);
  const busy = loads.filter((load) => load > BUSY * cpus().length).length;
  if (busy > 0) {
    console.log(
      `Other programs were running before ${busy} of ${loads.length} measurements: repeat them on a quiet machine.`,
    );
  }
  const folder = join(import.meta.dirname, 'results');
  mkdirSync(folder, { recursive: true });
  const path = join(folder, `${page.date.slice(0, 19).replaceAll(':', '-')}.json`);
  writeFileSync(path, `${JSON.stringify(page, null, 2)}\n`);
  console.log(`Written to ${path}`);
}
