/** Names of ibv_wc_status, by number. */
const NAMES =
  'SUCCESS LOC_LEN LOC_QP_OP LOC_EEC_OP LOC_PROT WR_FLUSH MW_BIND BAD_RESP LOC_ACCESS REM_INV_REQ REM_ACCESS REM_OP RETRY_EXC RNR_RETRY_EXC LOC_RDD_VIOL REM_INV_RD_REQ REM_ABORT INV_EECN INV_EEC_STATE FATAL RESP_TIMEOUT GENERAL'.split(
    ' ',
  );

/** IBV_WC_REM_ACCESS_ERR: the key, or the range, is not valid there any more. */
export const REMOTE_ACCESS = 10;
/** IBV_WC_RETRY_EXC_ERR: nobody acknowledged. */
const RETRY_EXC = 12;
/** IBV_WC_RNR_RETRY_EXC_ERR: the receiver is there, and had no receive. */
const RNR_RETRY_EXC = 13;

/** The status of a work completion, for messages: number and name. */
export function statusText(status: number): string {
  const name = NAMES[status];
  return `completion status ${status}${name === undefined || status === 0 ? '' : `, IBV_WC_${name}_ERR`}`;
}

/** What a status says that the network or the other host may be the cause of, and where to look: goes behind a sentence. */
export const statusHint = (status: number): string => HINTS[status] ?? '';

/** Why a READ of a peer's memory failed. @param done the bytes that had come */
export const deviceFailed = (done: number, status: number): string =>
  `the device failed (${statusText(status)}) when ${done} had come${statusHint(status)}`;

// Tries and times are those of native/transport/port.cc.
const HINTS: Readonly<Record<number, string>> = {
  [RETRY_EXC]:
    '. Its device acknowledged nothing in 8 tries of at least 134 ms. Likely causes, and where to look: ' +
    'its process or host is gone (millrace ls); ' +
    'the GIDs in use have no way to each other (millrace doctor on both hosts shows them, MILLRACE_GID_INDEX names others); ' +
    "something on the way has a smaller MTU than both ports, so that only what is small arrives (ping -M do -s with the port's MTU); " +
    'a firewall drops RoCE v2 (UDP port 4791); ' +
    'packets are lost for want of flow control (counters in /sys/class/infiniband/*/ports/*/hw_counters on both hosts, PFC of the switch)',
  [RNR_RETRY_EXC]:
    '. Its device is there, and had no receive for it in 7 tries of 2.56 ms. Credits see to it that there is one, so that a slow ' +
    'program is not the cause. Where to look: out_of_buffer and rnr_nak_retry_err in /sys/class/infiniband/*/ports/*/hw_counters on ' +
    'its host; where they rise without end its device takes receives up late. Else report it as a fault of the library',
};
