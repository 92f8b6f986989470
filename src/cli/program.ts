import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command, CommanderError, Option } from 'commander';
import type { Context } from './context.js';
import { EXIT, show, usage } from './exit.js';
import { Io, type Streams } from './io.js';
import { common, fabricName, whole } from './options.js';
import { Interrupts } from './signals.js';

/** What subscribers can ask publishers to do, in the words of the command line. */
const POLICIES = ['wait', 'drop-oldest', 'drop-newest', 'latest'];

/**
 * Runs a command line.
 * @param words the arguments without the program
 * @returns the exit code
 */
export async function run(words: readonly string[], streams: Streams = process): Promise<number> {
  const io = new Io(streams);
  const interrupts = new Interrupts();
  let exit: number = EXIT.OK;
  const action =
    <A extends unknown[]>(body: (context: Context, ...given: A) => Promise<number>) =>
    async (...given: A) => {
      exit = await body(
        { io, interrupted: interrupts.signal, releaseSignals: () => interrupts.release() },
        ...given,
      );
    };
  try {
    await program(streams, action).parseAsync(words, { from: 'user' });
    exit = interrupts.exit ?? exit;
  } catch (error) {
    exit = interrupts.exit ?? (io.closed.aborted ? EXIT.OK : report(error, io, words));
  }
  await io.flush();
  try {
    io.check();
  } catch (error) {
    exit = report(error, io, words);
    await io.flush();
  }
  interrupts.release();
  return exit;
}

/** Says what went wrong. @returns the exit code */
function report(error: unknown, io: Io, words: readonly string[]): number {
  const json = words.includes('--json');
  if (error instanceof CommanderError) {
    // Help and version were asked for, and are printed already.
    if (error.exitCode === 0) return EXIT.OK;
    if (error.code === 'commander.help') return EXIT.USAGE;
    const code = error.code === 'commander.unknownOption' ? 'ERR_UNKNOWN_OPTION' : 'ERR_INVALID_ARGUMENT';
    return report(usage(error.message.replace(/^error: /, '').replaceAll('\n', ' '), code), io, words);
  }
  const { exit, ...shown } = show(error);
  if (exit === EXIT.USAGE) shown.remedy ??= `Run millrace ${command(words)}--help for what it takes.`;
  if (shown.message !== '') io.error(shown, json);
  return exit;
}

const COMMANDS = ['pub', 'sub', 'ls', 'clean', 'doctor', 'verbs', 'steer', 'errors'];
const command = (words: readonly string[]): string => {
  const known = words.find((word) => COMMANDS.includes(word));
  return known === undefined ? '' : `${known} `;
};

type Action = <A extends unknown[]>(
  body: (context: Context, ...given: A) => Promise<number>,
) => (...given: A) => Promise<void>;

/** The commands and their options. What a command needs is loaded when it runs. */
function program(streams: Streams, action: Action): Command {
  const { env } = streams;
  const top = new Command('millrace')
    .description('Publish and subscribe between processes, and look at what is going on in a domain.')
    .version(version(), '-V, --version')
    .exitOverride()
    .enablePositionalOptions()
    .showSuggestionAfterError()
    .configureOutput({
      writeOut: (text) => streams.stdout.write(text),
      // What is wrong is said by report(), in the form of all errors.
      writeErr: (text) => {
        if (!text.startsWith('error:')) streams.stderr.write(text);
      },
      outputError: () => {},
    })
    .addHelpText(
      'after',
      `
Exit codes:
  0  done            1  failed
  2  wrong usage     3  nothing was found
  130, 143  ended by Ctrl-C, SIGTERM

Environment:
  MILLRACE_DOMAIN   the domain, unless --domain is given
  MILLRACE_SHM_DIR  the folder for shared memory (default /dev/shm)
  MILLRACE_DEVICE   the RDMA device (default soft: shared memory)
  MILLRACE_FABRIC   the software device's fabric (default default)

Examples:
  $ tail -f some.log | millrace pub logs      in one terminal
  $ millrace sub logs                         in others
  $ millrace ls
  $ millrace errors ERR_SHM_FULL`,
    );

  common(
    top.command('pub').argument('<channel>', 'dot-separated tokens, such as ticks.eurusd'),
    env,
    'how long to wait for subscribers, and at the end for what is on its way',
  )
    .description('Publish each line of standard input, until it ends.')
    .option('--jsonl', 'each line is a value in JSON; otherwise it is a string')
    .addOption(
      new Option('--codec <name>', 'how values travel')
        .choices(['msgpackr', 'json', 'bytes'])
        .default('msgpackr'),
    )
    .option(
      '-w, --wait-subscribers <n>',
      'read nothing before so many subscribers are there',
      whole(0, 1023),
      1,
    )
    .option(
      '--replay <n>',
      'keep so many lines for subscribers that come later and ask for them',
      whole(0, 1_000_000),
      0,
    )
    .option('--name <name>', 'the name that others see (millrace-pub and the pid unless given)')
    .addHelpText(
      'after',
      `
Input is read no faster than the slowest subscriber takes it, unless that one asked for drops.
At the end of the input the command waits (5s, or --timeout) until everything is delivered; what was not is said on
standard error, and the exit code is 1. It is 3 when the subscribers did not come within --timeout.

Examples:
  $ tail -f some.log | millrace pub logs
  $ echo '{"bid": 1.0841}' | millrace pub ticks.eurusd --jsonl
  $ seq 1000 | millrace pub numbers --wait-subscribers 2 --timeout 10s
  $ date | millrace pub now --wait-subscribers 0      to whoever is there, if anyone`,
    )
    .action(
      action(async (context, channel: string, options: import('./pub.js').PubOptions) => {
        if (options.jsonl && options.codec === 'bytes')
          throw usage('--jsonl and --codec bytes exclude each other.');
        return (await import('./pub.js')).pub(channel, options, context);
      }),
    );

  common(
    top
      .command('sub')
      .argument('<pattern>', 'a channel, or a pattern: * is one token, > at the end one or more'),
    env,
    'end after that time',
  )
    .description('Print what is published, until interrupted.')
    .option('-n, --count <n>', 'end after so many messages', whole(1))
    .option('--jsonl', 'print each value as a line of JSON; otherwise text and bytes are printed as they are')
    .addOption(
      new Option('--overflow <policy>', 'what publishers do when this command is slower than they are')
        .choices(POLICIES)
        .default('wait'),
    )
    .option('--replay <n>', 'ask for so many messages that were published before', whole(0, 1_000_000), 0)
    .option('--name <name>', 'the name that others see (millrace-sub and the pid unless given)')
    .addHelpText(
      'after',
      `
With a wildcard each line begins with the channel's name and a tab. --json prints an object a line: channel, publisher,
sequence, time, value. Gaps are said on standard error.
With --overflow wait a publisher waits for whoever reads the output; use drop-oldest to look at a live system.
The exit code is 3 when --timeout ends it without a message, and 1 when fewer than --count came.

Examples:
  $ millrace sub logs
  $ millrace sub 'ticks.*' --jsonl --count 10
  $ millrace sub '>' --json --overflow drop-oldest | jq .value`,
    )
    .action(
      action(async (context, pattern: string, options: import('./sub.js').SubOptions) =>
        (await import('./sub.js')).sub(pattern, options, context),
      ),
    );

  common(top.command('ls'), env, 'how long a member has to answer (default 1s)')
    .description('List members, channels and subscribers, with codecs, credits and drops.')
    .option('-a, --all', 'every domain of this user')
    .addHelpText(
      'after',
      `
The members are asked; the command does not join, so it works where a join fails. One that is stopped or busy is listed
with "no answer". The exit code is 3 when there is no member.

Examples:
  $ millrace ls
  $ millrace ls --all --json | jq '.domains[].members[].name'`,
    )
    .action(
      action(async (context, options: import('./ls.js').LsOptions) =>
        (await import('./ls.js')).ls(options, context),
      ),
    );

  common(top.command('clean'), env, 'accepted, and without effect: it does not wait')
    .description('Remove what dead members left in shared memory.')
    .option('-a, --all', 'every domain of this user')
    .addHelpText(
      'after',
      `
Living members are not touched. Joining does the same for its domain, so this is for what the last one left.

Examples:
  $ millrace clean
  $ millrace clean --all`,
    )
    .action(
      action(async (context, options: import('./clean.js').CleanOptions) =>
        (await import('./clean.js')).clean(options, context),
      ),
    );

  top
    .command('doctor')
    .description('Look at RDMA devices, limits and shared memory, and say what to change.')
    .option('--json', 'print JSON, for programs')
    .addHelpText(
      'after',
      `
Opens each device for a moment and joins nothing. Looked at are MILLRACE_SHM_DIR and MILLRACE_DEVICE, as members use them.
The exit code is 1 when something keeps members from joining.

Examples:
  $ millrace doctor
  $ millrace doctor --json | jq '.probe.devices[] | {name, lanes, missing}'
  $ MILLRACE_DEVICE=mlx5_0 millrace doctor`,
    )
    .action(
      action(async (context, options: import('./doctor.js').DoctorOptions) =>
        (await import('./doctor.js')).doctor(options, context),
      ),
    );

  top
    .command('verbs')
    .argument('<program>', 'a program that uses libibverbs')
    .argument('[words...]', "the program's own arguments")
    .passThroughOptions()
    .description('Run a program on the software RDMA device, without an adapter or privileges.')
    .addOption(
      new Option(
        '--link <layer>',
        'the link layer of the ports (MILLRACE_SOFT_LINK, else infiniband)',
      ).choices(['infiniband', 'ethernet']),
    )
    .option('--devices <n>', 'so many devices, soft0 and on (MILLRACE_SOFT_DEVICES, else 1)', whole(1, 8))
    .option(
      '--fabric <name>',
      'processes meet if they name the same one (MILLRACE_FABRIC, else default)',
      fabricName,
    )
    .addHelpText(
      'after',
      `
The program finds a libibverbs.so.1 that has the devices soft0, soft1 ... in the place of the system's one. Processes that
run so on one host, of one user, reach each other. It must be linked dynamically, and not set-user-id.
The exit code is the program's, and a signal that ends it ends this command; 127 and 126 when it is not found or not
executable.

Examples:
  $ millrace verbs -- ibv_devinfo -v
  $ millrace verbs -- ib_send_lat -c XRC &  millrace verbs -- ib_send_lat -c XRC localhost
  $ millrace verbs --link ethernet --devices 2 -- python3 my_pyverbs_program.py`,
    )
    .action(
      action(async (context, name: string, words: string[], options: import('./verbs.js').VerbsOptions) =>
        (await import('./verbs.js')).verbs(name, words, options, context),
      ),
    );

  const steer = top
    .command('steer')
    .description('Check rules that steer network flows into channels, and explain what they do.')
    .addHelpText(
      'after',
      `
docs/steering.md has the form of the rules. No device is needed, and nothing is changed.

Examples:
  $ millrace steer validate rules.yaml
  $ millrace steer explain rules.yaml --pcap trace.pcap`,
    );

  steer
    .command('validate')
    .argument('<file>', 'rules in YAML or JSON')
    .description('Say what is wrong with a file of rules: by itself, and between its rules.')
    .option('--strict', 'warnings count as errors')
    .option('--json', 'print JSON, for programs')
    .addHelpText(
      'after',
      `
Errors are what a rule can not say and rules that contradict each other. Warnings are rules that never get a packet, and
overlaps that only their order decides. Each names the rules and their lines. The exit code is 1 when there are errors.

Examples:
  $ millrace steer validate rules.yaml
  $ millrace steer validate rules.yaml --json | jq '.problems[] | {line, message}'`,
    )
    .action(
      action(async (context, file: string, options: import('./steer.js').ValidateOptions) =>
        (await import('./steer.js')).validate(file, options, context),
      ),
    );

  steer
    .command('explain')
    .argument('<file>', 'rules in YAML or JSON')
    .description('Say which rule takes each packet, and why the others do not.')
    .option('--pcap <file>', 'the packets of a capture (pcap or pcapng, of an Ethernet interface)')
    .option('--packet <hex>', 'one Ethernet frame')
    .option('--interface <name>', 'where they came in, if the capture does not say')
    .option('--json', 'print JSON, for programs')
    .addHelpText(
      'after',
      `
Packets that look the same to all rules are shown together. The exit code is 3 when no rule takes or drops any of them.

Examples:
  $ tcpdump -i eth0 -c 1000 -w trace.pcap;  millrace steer explain rules.yaml --pcap trace.pcap
  $ millrace steer explain rules.yaml --packet "$(xxd -p frame.bin)"
  $ millrace steer explain rules.yaml --pcap trace.pcap --json | jq .totals`,
    )
    .action(
      action(async (context, file: string, options: import('./steer.js').ExplainOptions) =>
        (await import('./steer.js')).explainPackets(file, options, context),
      ),
    );

  top
    .command('errors')
    .argument('[code]', 'such as ERR_SHM_FULL; all of them unless given')
    .description('Explain an error code: cause and remedy.')
    .option('--json', 'print JSON, for programs')
    .addHelpText(
      'after',
      `
Examples:
  $ millrace errors
  $ millrace errors ERR_SHM_FULL`,
    )
    .action(
      action(async (context, code: string | undefined, { json = false }: { json?: boolean }) =>
        (await import('./explain.js')).explain(code, json, context),
      ),
    );
  return top;
}

function version(): string {
  const file = join(__dirname, '..', '..', 'package.json');
  return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version;
}
