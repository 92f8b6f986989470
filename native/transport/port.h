#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "base/status.h"
#include "transport/handshake.h"

namespace millrace::transport {

/** The port that a member's lanes use: how it is addressed, and how it addresses others (VERBS 5).
 */
struct Port {
  Address address;
  uint8_t number = 1;
  uint8_t sgid_index = 0;  ///< of our GID table
  bool ethernet = false;
  uint32_t interface = 0;  ///< index of the network interface behind the GID; 0: none, or not known

  /** Asks the device. The GID is chosen as verbs::choose_gid() says. Errors: of the queries. */
  static base::Result<Port> query(ibv_context* context);
};

/** Which end of a connection a QP is. */
enum class End : uint8_t { kInitiator, kTarget };

/** What both ends of a connection agree on. */
struct Connection {
  Address remote;
  uint32_t remote_qp = 0;
  uint32_t psn = 0;  ///< of the initiator's requests
};

/**
 * Takes a QP of an RC or XRC type from any state through RESET (which purges) to where it works:
 * RTS for an initiator, RTR for a target, which only answers. VERBS 2.8 has the masks of each end.
 * A target lets its PD's memory be written (that is what grants are) and read (fetches), where the
 * key's own rights do.
 */
base::Status bring_up(ibv_qp* qp, End end, const Port& port, const Connection& connection);

/** The same for a UD QP: to RTS, with a Q_Key. */
base::Status bring_up_datagrams(ibv_qp* qp, const Port& port, uint32_t qkey);

/** Takes a QP to ERR; what it has left is flushed. */
void to_error(ibv_qp* qp);

}  // namespace millrace::transport
