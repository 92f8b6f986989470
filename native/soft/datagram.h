#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "soft/layout/completions.h"
#include "soft/pipeline.h"
#include "soft/port.h"

namespace millrace::soft {

class Root;

/** Counts a drop at the port of a device. Any thread. */
void count_drop(Root& root, uint32_t device, DropReason why);

/** What is sent, apart from who gets it. */
struct Datagram {
  const ibv_send_wr* wr = nullptr;
  Operation op;
  const Segment* segments = nullptr;
  int count = 0;
  uint32_t total = 0;
  uint8_t* header = nullptr;  ///< the 40 bytes in front of it; null: the room stays as it is
  uint32_t room = 0;          ///< kGrhBytes, or 0 for frames
  bool checks_qkey = false;
  uint32_t qkey = 0;
  uint8_t sl = 0;
  uint16_t slid = 0;
  uint8_t flags = 0;    ///< ibv_wc_flags, and kEntryTagged
  uint32_t tag = 0;     ///< with kEntryTagged
  uint32_t source = 0;  ///< what src_qp says
};

/**
 * Delivers to one QP of our own type, or drops. Fails only for a shortage of this process. Needs
 * the QP's lock.
 */
Outcome deliver(Qp& qp, const Datagram& datagram, uint32_t qpn, uint32_t device);

/** The front WR of a UD QP. */
Outcome run_datagram(Qp& qp, const ibv_send_wr& wr);
/** The front WR of a RAW_PACKET QP. */
Outcome run_frame(Qp& qp, const ibv_send_wr& wr);

}  // namespace millrace::soft
