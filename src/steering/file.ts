import { isMap, isNode, isSeq, LineCounter, parseDocument } from 'yaml';
import { MillraceError } from '../errors.js';
import { describe } from '../suggest.js';
import type { Position } from './rule.js';
import { type RuleSet, readRules } from './set.js';

/** Aliases may make a small file a huge one. */
const MAX_ALIASES = 100;

/**
 * Reads a set of rules from YAML or JSON (which is YAML): a list of rules, or an object with `rules`. Every problem has the
 * line that it is in. Pure; never throws.
 * @param file its name, for the problems
 */
export function readRuleText(text: string, file: string): RuleSet {
  const { rules, problems } = read(text);
  return { rules, problems: problems.map((problem) => ({ file, ...problem })) };
}

function read(text: string): RuleSet {
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false });
  const place = (offset: number): Position => {
    const { line, col } = lines.linePos(offset);
    return { line, column: col };
  };
  const broken = (message: string, offset: number, remedy: string): RuleSet => ({
    rules: [],
    problems: [
      { severity: 'error', kind: 'syntax', rule: '', errno: 'EINVAL', message, remedy, ...place(offset) },
    ],
  });
  const [error] = document.errors;
  if (error !== undefined) {
    if (error.code === 'MULTIPLE_DOCS')
      return broken('the file has several documents', error.pos[0], 'Put all rules into the first.');
    return broken(error.message.replace(/\.?\s*$/, ''), error.pos[0], 'Correct the YAML or JSON.');
  }
  const { contents } = document;
  const inside = isMap(contents);
  const list = inside ? contents.get('rules', true) : contents;
  const start = (isNode(list) ? list.range?.[0] : contents?.range?.[0]) ?? 0;
  if (!isSeq(list)) {
    return broken(
      'the file has no list of rules',
      start,
      'Write "rules:", and below it one "- name: …" for each rule.',
    );
  }
  const other = inside ? contents.items.find((pair) => String(pair.key) !== 'rules') : undefined;
  if (other !== undefined) {
    return broken(
      `there is no field ${describe(String(other.key))} beside rules`,
      isNode(other.key) ? (other.key.range?.[0] ?? 0) : 0,
      'Remove it.',
    );
  }
  let inputs: unknown[];
  try {
    inputs = list.toJS(document, { maxAliasCount: MAX_ALIASES });
  } catch (cause) {
    return broken((cause as Error).message, start, 'Use fewer aliases.');
  }
  return readRules(inputs, (rule) => (path) => {
    // A key stands for its value: what is wrong may be either.
    const node = document.getIn([...(inside ? ['rules'] : []), rule, ...path], true);
    const offset = isNode(node) ? node.range?.[0] : undefined;
    return offset === undefined ? undefined : place(offset);
  });
}

/** Why a file could not be read: ERR_STEERING_FILE. */
export function fileError(file: string, cause: unknown): MillraceError {
  const { code, errno, message } = cause as NodeJS.ErrnoException;
  const why =
    code === 'ENOENT'
      ? 'it does not exist'
      : code === 'EACCES'
        ? 'this user may not read it'
        : code === 'EISDIR'
          ? 'it is a folder'
          : message;
  return new MillraceError('ERR_STEERING_FILE', `${file}: ${why}${code === undefined ? '' : ` (${code})`}.`, {
    cause,
    ...(errno === undefined ? {} : { errno }),
    ...(code === undefined ? {} : { errnoName: code }),
  });
}
