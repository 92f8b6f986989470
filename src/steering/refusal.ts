import { MillraceError } from '../errors.js';
import { called, type Rule } from './rule.js';

/** What a device answers, in which field the reason is, and what to do about it. */
const REMEDIES: Readonly<Record<string, { field?: string; cause: string; remedy: string }>> = {
  EPERM: {
    cause: 'this process lacks CAP_NET_RAW, which flows need',
    remedy:
      'Grant it: setcap cap_net_raw+ep on the node binary, AmbientCapabilities=CAP_NET_RAW for a systemd service, ' +
      '--cap-add NET_RAW for a container; or run as root.',
  },
  ENOMEM: {
    cause: 'the flow table of the device is full',
    remedy: 'Remove rules, or make one of several with a CIDR block or a mask.',
  },
  ENXIO: {
    cause: 'flow steering is off on this device',
    remedy:
      'Turn it on: unset MILLRACE_SOFT_STEERING for the software device; for mlx4 load its driver with log_num_mgm_entry_size=-1.',
  },
  ENODEV: {
    field: 'match.interface',
    cause: 'there is no such network interface, or none that leads to the group',
    remedy: 'Name one that `ip link` shows; add the rule again once it is there.',
  },
  EADDRINUSE: {
    field: 'match.port',
    cause: 'somebody else has the UDP port',
    remedy:
      'Without CAP_NET_RAW a port of this host has one owner: end the other program, or grant the capability. Rules for one ' +
      'port must all name the same interface, or none.',
  },
  EADDRNOTAVAIL: {
    field: 'match.dst',
    cause: 'no network interface of this host has the address',
    remedy: 'Use an address that `ip address` shows, or grant CAP_NET_RAW, which takes any.',
  },
  EACCES: {
    field: 'match.port',
    cause: 'this user may not have that UDP port',
    remedy: 'Use a port from net.ipv4.ip_unprivileged_port_start on (1024), or grant CAP_NET_RAW.',
  },
  EMFILE: {
    cause: 'the process has no file descriptor left',
    remedy: 'Raise its limit (ulimit -n), or use fewer rules.',
  },
  EINVAL: {
    field: 'match',
    cause: 'the device does not take this match, or this port',
    remedy: 'Match on fewer fields, and without partial masks; adapters differ in what they can.',
  },
  EOPNOTSUPP: {
    field: 'match',
    cause: 'the device cannot do this',
    remedy: 'Run millrace doctor to see which device can steer; use an Ethernet port.',
  },
};

/** ERR_STEERING_REFUSED: why the device did not take a rule. */
export function refused(call: string, rule: Rule, cause: unknown): MillraceError {
  const given = cause as { code?: string; errno?: number; field?: string; detail?: string; message?: string };
  const { code = 'EIO', errno, detail, message } = given;
  const known = REMEDIES[code];
  const field = given.field ?? known?.field;
  const said = detail || (known?.cause ?? message ?? String(cause));
  return new MillraceError(
    'ERR_STEERING_REFUSED',
    `${call}: ${called(rule)}: ${field === undefined ? '' : `${field}: `}${said} (${code}). Nothing was changed. ${known?.remedy ?? ''}`.trimEnd(),
    {
      cause,
      errnoName: code,
      ...(errno === undefined ? {} : { errno }),
      // Room comes back; a capability or a driver's option does not by itself.
      retryable: code === 'ENOMEM',
      details: { rule: rule.name, ...(field === undefined ? {} : { field }) },
    },
  );
}
