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
