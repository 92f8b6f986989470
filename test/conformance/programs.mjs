/**
 * What is run of Debian's ibverbs-utils and perftest, as jobs for runJob(). A name says program, transport and what is
 * special; `full` jobs run with --full only, `root` ones need CAP_NET_RAW, `user` ones run as an ordinary user, too.
 */

/** @typedef {{ name: string, full?: boolean, root?: boolean, user?: boolean, links: string[], job: (place: { port: number, link: string }) => object }} Check */

/** What takes longer hangs. Two programs that poll in turns are slow where others want the CPUs, too: this is 50 times what they need. */
const LIMIT_MS = 90_000;
const BOTH = ['infiniband', 'ethernet'];
const ETHERNET = ['ethernet'];

/** Says what is missing in a text. */
const has =
  (...wanted) =>
  (text) => {
    const absent = wanted.filter((one) => !(one instanceof RegExp ? one.test(text) : text.includes(one)));
    return absent.length > 0 ? `it did not print ${absent.join(', ')}` : '';
  };

/** Options for the kind of port: on Ethernet a GID must be chosen, and GID 1 is RoCE v2. */
const gid = (link, option) => (link === 'ethernet' ? [option, '1'] : []);

/** A ping-pong, polling or sleeping on events. */
function pingpong(kind, title, extra = [], { clients = 1, full = false, serverOnly = [] } = {}) {
  return {
    name: `ibv_${kind}_pingpong ${title}`,
    full,
    user: true,
    links: BOTH,
    job: ({ port, link }) => {
      const words = ['-d', 'soft0', '-p', String(port), ...gid(link, '-g'), ...extra];
      const command = `ibv_${kind}_pingpong`;
      return {
        server: [command, ...words, ...serverOnly],
        clients: Array.from({ length: clients }, () => [command, ...words, '127.0.0.1']),
        expect: kind === 'xsrq' ? has('success') : has(/iters in .* usec\/iter/),
        limitMs: LIMIT_MS,
      };
    },
  };
}

/** A perftest program; its client's last line has the numbers. */
function perftest(program, title, extra, { full = false, links = BOTH, iterations = 200 } = {}) {
  return {
    name: `${program} ${title}`,
    full,
    links,
    job: ({ port, link }) => {
      const words = ['-d', 'soft0', '-p', String(port), '-F', ...gid(link, '-x')];
      if (!extra.includes('-D') && iterations > 0) words.push('-n', String(iterations));
      words.push(...extra);
      return {
        server: [program, ...words],
        clients: [[program, ...words, '127.0.0.1']],
        expect: has(/^ *\d+ +\d+ +.*\d/m),
        limitMs: LIMIT_MS,
      };
    },
  };
}

/** Raw frames. The two sides don't talk over TCP: the server is ready when it has printed its table's head. */
function raw(program, title, extra = []) {
  return {
    name: `${program} ${title}`,
    links: ETHERNET,
    root: true,
    user: true,
    job: () => {
      const common = ['-d', 'soft0', '-F', '-s', '512', '-D', '1', '-f', '0', ...extra];
      const macs = ['02:11:22:33:44:01', '02:11:22:33:44:02'];
      const side = (mine, other, role) => [
        ...['stdbuf', '-oL', program, ...common, '-B', mine, '-E', other, role],
      ];
      return {
        server: side(macs[0], macs[1], '--server'),
        ready: (server) => server.text.includes('#bytes'),
        clients: [side(macs[1], macs[0], '--client')],
        expect: has(/^ *\d+ +\d+ +.*\d/m),
        limitMs: LIMIT_MS,
      };
    },
  };
}

/** One program alone. */
const alone = (name, program, expect, links = BOTH, env = {}) => ({
  name,
  user: true,
  links,
  job: () => ({ program, expect, env, limitMs: LIMIT_MS }),
});

/** @type {Check[]} */
export const CHECKS = [
  alone('ibv_devices', ['ibv_devices'], has('soft0')),
  alone('ibv_devinfo -v', ['ibv_devinfo', '-v'], has('hca_id:\tsoft0', 'PORT_ACTIVE', 'GID[  0]')),
  alone('ibv_devinfo of three devices', ['ibv_devinfo', '-l'], has('soft0', 'soft1', 'soft2'), BOTH, {
    MILLRACE_SOFT_DEVICES: '3',
  }),

  ...['rc', 'uc', 'ud', 'srq'].flatMap((kind) => [
    pingpong(kind, 'polling'),
    pingpong(kind, 'with events', ['-e']),
  ]),
  pingpong('rc', 'with checked contents', ['-c', '-s', '65536', '-n', '200']),
  pingpong('rc', 'with time stamps', ['-t']),
  pingpong('rc', 'with ibv_wr_*', ['-N']),
  pingpong('rc', 'with large messages', ['-s', '1000000', '-n', '50', '-r', '10', '-m', '4096'], {
    full: true,
  }),
  pingpong('srq', 'with 8 QPs', ['-q', '8']),
  pingpong('xsrq', 'polling'),
  pingpong('xsrq', 'with events', ['-e']),
  pingpong('xsrq', 'with 3 client processes', ['-n', '50'], { clients: 3, serverOnly: ['-c', '3'] }),
  pingpong('xsrq', 'with 3 client processes and events', ['-n', '50', '-e'], {
    clients: 3,
    serverOnly: ['-c', '3'],
  }),

  {
    name: 'ibv_rc_pingpong between two devices',
    links: BOTH,
    job: ({ port, link }) => {
      const words = ['-p', String(port), ...gid(link, '-g')];
      return {
        server: ['ibv_rc_pingpong', '-d', 'soft0', ...words],
        clients: [['ibv_rc_pingpong', '-d', 'soft1', ...words, '127.0.0.1']],
        env: { MILLRACE_SOFT_DEVICES: '2' },
        expect: has(/iters in .* usec\/iter/),
        limitMs: LIMIT_MS,
      };
    },
  },

  // What is sent to an SRQ or a queue of one's own.
  ...['RC', 'UC', 'UD', 'XRC'].flatMap((transport) => [
    perftest('ib_send_lat', transport, ['-c', transport]),
    perftest('ib_send_bw', transport, ['-c', transport, '-s', '4096']),
    perftest('ib_send_lat', `${transport} with events`, ['-c', transport, '-e']),
    perftest('ib_send_bw', `${transport} with 4 QPs`, ['-c', transport, '-s', '2048', '-q', '4'], {
      full: transport === 'UC',
    }),
    perftest('ib_send_bw', `${transport} both ways`, ['-c', transport, '-s', '2048', '-b'], {
      full: transport === 'UC',
    }),
    perftest('ib_send_lat', `${transport} inline`, ['-c', transport, '-s', '64', '-I', '64']),
  ]),
  ...['RC', 'UD'].map((transport) =>
    perftest('ib_send_bw', `${transport} with an SRQ`, ['-c', transport, '-s', '1024', '--use-srq']),
  ),
  perftest('ib_send_bw', 'RC with an SRQ and 4 QPs', ['-c', 'RC', '-s', '1024', '--use-srq', '-q', '4']),
  // On InfiniBand perftest joins at the subnet manager, through the kernel.
  perftest('ib_send_bw', 'UD to a multicast group', ['-c', 'UD', '-s', '1024', '-g'], {
    links: ETHERNET,
  }),
  perftest('ib_send_bw', 'RC with lists of WRs', [
    '-c',
    'RC',
    '-s',
    '1024',
    '-l',
    '8',
    '--recv_post_list',
    '8',
  ]),
  perftest('ib_send_bw', 'RC by the older calls', ['-c', 'RC', '-s', '1024', '--use_old_post_send']),
  perftest('ib_send_bw', 'RC, all sizes', ['-c', 'RC', '-a'], { full: true }),
  perftest('ib_send_bw', 'XRC, all sizes', ['-c', 'XRC', '-a'], { full: true }),

  ...['RC', 'UC', 'XRC'].flatMap((transport) => [
    perftest('ib_write_bw', transport, ['-c', transport]),
    perftest('ib_write_lat', transport, ['-c', transport]),
    perftest('ib_write_bw', `${transport} with 4 QPs`, ['-c', transport, '-q', '4'], { full: true }),
  ]),
  perftest('ib_write_bw', 'RC both ways', ['-c', 'RC', '-b']),
  perftest('ib_write_lat', 'RC inline', ['-c', 'RC', '-s', '64', '-I', '64']),
  perftest('ib_write_bw', 'RC for a second', ['-c', 'RC', '-D', '1', '-f', '0']),
  perftest('ib_write_bw', 'RC, all sizes', ['-c', 'RC', '-a'], { full: true }),

  ...['RC', 'XRC'].flatMap((transport) => [
    perftest('ib_read_bw', transport, ['-c', transport]),
    perftest('ib_read_lat', transport, ['-c', transport]),
    perftest('ib_atomic_bw', `${transport} fetch and add`, ['-c', transport, '-A', 'FETCH_AND_ADD']),
    perftest('ib_atomic_bw', `${transport} compare and swap`, ['-c', transport, '-A', 'CMP_AND_SWAP']),
    perftest('ib_atomic_lat', `${transport} fetch and add`, ['-c', transport, '-A', 'FETCH_AND_ADD']),
  ]),
  perftest('ib_read_bw', 'RC with events', ['-c', 'RC', '-e'], { full: true }),
  perftest('ib_read_bw', 'RC with 16 outstanding', ['-c', 'RC', '-o', '16']),
  perftest('ib_atomic_bw', 'RC both ways with 4 QPs', ['-c', 'RC', '-A', 'FETCH_AND_ADD', '-b', '-q', '4']),

  raw('raw_ethernet_bw', 'unicast'),
  raw('raw_ethernet_lat', 'unicast'),
  {
    ...alone(
      'raw_ethernet_fs_rate of 1,000 flow rules',
      [
        ...['raw_ethernet_fs_rate', '-d', 'soft0', '-F', '--server', '-n', '1000'],
        ...['-B', '02:11:22:33:44:01', '-E', '02:11:22:33:44:02'],
      ],
      has(/^1000 +[\d.]+/m),
      ETHERNET,
    ),
    root: true,
  },
];
