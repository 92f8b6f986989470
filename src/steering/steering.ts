import { resolve } from 'node:path';
import { type AnyMillraceError, MillraceError, MillraceTypeError } from '../errors.js';
import { invalidArgument } from '../suggest.js';
import { type Flow, keepFlows } from './change.js';
import { compile } from './compile.js';
import { findConflicts } from './conflicts.js';
import { type Explanation, explain } from './explain.js';
import { readRuleText } from './file.js';
import type { FlowCounters, FlowTable } from './flow-table.js';
import { decodePacket } from './packet.js';
import { parseRule } from './parse.js';
import { errorsOf, type Problem, rulesError } from './problem.js';
import { refused } from './refusal.js';
import type { Rule, RuleInput } from './rule.js';
import { checkList, readRules } from './set.js';
import { type Observable, Source, sample } from './stream.js';
import { FileWatch } from './watch.js';

/** How often stats$ tells, in ms. */
const STATS_MS = 1000;
/** How often it looks whether an interface was replaced, in ms. */
const LOOK_MS = 1000;

/** What a rule did. */
export interface RuleStats extends FlowCounters {
  /** The rule's name. */
  readonly rule: string;
  /** The channel; null for a rule that drops or counts. */
  readonly to: string | null;
}

/** What happens to a watched file of rules. */
export type SteeringEvent =
  /** Its rules are in force, with what is to be said about them. */
  | {
      readonly type: 'loaded';
      readonly file: string;
      readonly rules: number;
      readonly warnings: readonly Problem[];
    }
  /** It is not valid, cannot be read, or was refused by the device: the rules from before stay. */
  | { readonly type: 'rejected'; readonly file: string; readonly error: AnyMillraceError };

/** A watched file. */
export interface WatchedFile {
  readonly file: string;
  /** Ends the watching; the rules stay. Idempotent. */
  close(): void;
}

/**
 * The rules of a member: which packets come into which of its channels. Each change is made as a whole or not at all, and a
 * rule that is there before and after it misses no packet. The first rules are the oldest.
 */
export class Steering {
  /** Packets, bytes and drops of each rule since it came into force, once a second to each subscriber. */
  readonly stats$: Observable<readonly RuleStats[]>;
  /** What happens to the file that is watched. */
  readonly events$: Observable<SteeringEvent>;
  readonly #table: FlowTable;
  readonly #events = new Source<SteeringEvent>();
  readonly #end = new Source<void>();
  #flows: readonly Flow[] = [];
  #warnings: readonly Problem[] = [];
  #watch: FileWatch | undefined;
  #closed = false;
  #unnamed = 0;
  #look: NodeJS.Timeout | undefined;

  /** @internal A member makes its own. */
  constructor(table: FlowTable) {
    this.#table = table;
    this.events$ = this.#events.stream$;
    this.stats$ = sample(() => this.stats(), STATS_MS, this.#end.stream$);
  }

  /** The rules in force, the oldest first. */
  get rules(): readonly Rule[] {
    return this.#flows.map(({ rule }) => rule);
  }

  /** What is to be said about the rules in force: such as never get a packet, overlaps that only age decides. */
  get warnings(): readonly Problem[] {
    return this.#warnings;
  }

  /**
   * Adds rules; they are younger than those that are there.
   * @returns the rules, with their names
   * @throws MillraceTypeError ERR_STEERING_RULE (also where one contradicts a rule that is there), MillraceError
   *   ERR_STEERING_REFUSED (the device's errno and what to do), ERR_MEMBER_CLOSED; then nothing was changed
   */
  add(inputs: RuleInput | readonly RuleInput[]): readonly Rule[] {
    const list: readonly unknown[] = Array.isArray(inputs) ? inputs : [inputs];
    const { rules } = this;
    const taken = new Set(rules.map(({ name }) => name));
    let number = this.#unnamed;
    const parsed = list.map((input) => {
      do number++;
      while (taken.has(`#${number}`));
      return parseRule(input, `#${number}`);
    });
    const added = parsed.flatMap(({ rule }) => rule ?? []);
    const all = [...rules, ...added];
    this.#apply('steering.add()', all, [
      ...parsed.flatMap(({ problems }) => problems),
      ...findConflicts(all),
    ]);
    this.#unnamed = number;
    return added;
  }

  /**
   * Removes rules by their names.
   * @throws MillraceError ERR_STEERING_UNKNOWN, MillraceTypeError ERR_INVALID_ARGUMENT; then nothing was changed
   */
  remove(names: string | readonly string[]): void {
    const list: readonly unknown[] = Array.isArray(names) ? names : [names];
    const wrong = list.findIndex((name) => typeof name !== 'string');
    if (wrong >= 0) invalidArgument('steering.remove()', "a rule's name", list[wrong], 'a string');
    const gone = new Set(list as readonly string[]);
    const { rules } = this;
    for (const name of gone) {
      if (rules.some((rule) => rule.name === name)) continue;
      throw new MillraceError(
        'ERR_STEERING_UNKNOWN',
        `steering.remove(): there is no rule ${JSON.stringify(name)}. There are ${rules.map((one) => one.name).join(', ') || 'none'}.`,
      );
    }
    const left = rules.filter(({ name }) => !gone.has(name));
    this.#apply('steering.remove()', left, findConflicts(left));
  }

  /**
   * Puts a set of rules in the place of all that are there. Rules that are in both go on without a gap. For a moment both
   * sets are in the device, so its table needs room for the new ones as well.
   * @throws as add()
   */
  replace(inputs: readonly RuleInput[]): readonly Rule[] {
    checkList('steering.replace()', inputs);
    const { rules, problems } = readRules(inputs);
    this.#apply('steering.replace()', rules, problems);
    this.#unnamed = inputs.length;
    return rules;
  }

  /**
   * replace() from a YAML or JSON file, now and whenever it changes. A bad edit is told on `events$`, and the rules from
   * before stay. A file that was watched before is watched no longer.
   * @throws (rejects) MillraceError ERR_STEERING_FILE, or what replace() throws: the file must be good at the start
   */
  async watch(path: string): Promise<WatchedFile> {
    if (typeof path !== 'string') invalidArgument('steering.watch()', 'the path', path, 'a string');
    const file = resolve(path);
    const load = (text: string) => {
      const { rules, problems } = readRuleText(text, file);
      this.#apply('steering.watch()', rules, problems);
      this.#events.next({ type: 'loaded', file, rules: rules.length, warnings: this.#warnings });
    };
    const reject = (error: unknown) =>
      this.#events.next({ type: 'rejected', file, error: error as AnyMillraceError });
    const listener = {
      apply: (text: string) => {
        try {
          load(text);
          return true;
        } catch (error) {
          reject(error);
          return false;
        }
      },
      report: reject,
    };
    const watch = await FileWatch.open(file, listener, load);
    this.#watch?.close();
    this.#watch = watch;
    // The member may have left meanwhile.
    if (this.#closed) watch.close();
    return watch;
  }

  /** What each rule did since it came into force, the oldest first. */
  stats(): readonly RuleStats[] {
    return this.#flows.map(({ rule, handle }) => ({
      rule: rule.name,
      to: typeof rule.action === 'object' ? rule.action.to.name : null,
      ...this.#table.read(handle),
    }));
  }

  /**
   * Which rules in force take a frame, and why the others do not. Nothing is sent or counted.
   * @param frame with its Ethernet header
   * @param port the network interface that it would come in through; any unless given
   * @throws MillraceTypeError ERR_INVALID_ARGUMENT when it is no bytes, or shorter than that header
   */
  explain(frame: Uint8Array, port?: string): Explanation {
    const packet = decodePacket(frame, port);
    if (packet !== undefined) return explain(this.rules, packet);
    throw new MillraceTypeError(
      'ERR_INVALID_ARGUMENT',
      `steering.explain(): the frame has ${frame.length} bytes, and an Ethernet header alone has 14.`,
    );
  }

  /** @internal Ends all rules, as the member leaves. Idempotent. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#watch?.close();
    clearInterval(this.#look);
    for (const { handle } of this.#flows) this.#table.destroy(handle);
    this.#flows = [];
    this.#end.complete();
    this.#events.complete();
  }

  /** Goes from the rules in force to these, as a whole or not at all. */
  #apply(call: string, rules: readonly Rule[], problems: readonly Problem[]): void {
    if (this.#closed) {
      throw new MillraceError('ERR_MEMBER_CLOSED', `${call}: the member has left its domain. Join again.`);
    }
    if (errorsOf(problems).length > 0) throw rulesError(call, problems);
    const next = rules.map((rule) => ({ rule, attr: compile(rule) }));
    this.#table.look();
    const kept = keepFlows(
      this.#flows.filter(({ handle }) => !this.#table.dead(handle)),
      next,
    );
    const made: Flow[] = [];
    const flows: Flow[] = [];
    for (const { rule, attr } of next) {
      const old = kept.get(rule);
      if (old !== undefined) {
        flows.push({ ...old, rule });
        continue;
      }
      try {
        made.push({ rule, attr, handle: this.#table.create(rule, attr) });
      } catch (cause) {
        for (const { handle } of made.reverse()) this.#table.destroy(handle);
        throw refused(call, rule, cause);
      }
      flows.push(made.at(-1)!);
    }
    const staying = new Set(flows.map(({ handle }) => handle));
    for (const { handle } of this.#flows) if (!staying.has(handle)) this.#table.destroy(handle);
    this.#flows = flows;
    this.#warnings = problems;
    if (this.#look === undefined && rules.some(({ match }) => match.interface !== undefined))
      this.#look = setInterval(() => this.#heal(), LOOK_MS).unref();
  }

  /** Rules of an interface that was deleted, and is there again, are made anew. */
  #heal(): void {
    if (!this.#table.look()) return;
    try {
      this.#apply('steering', this.rules, this.#warnings);
    } catch {
      // It is not ready, or has gone again: at the next look.
    }
  }
}
