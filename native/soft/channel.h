#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "base/files.h"
#include "soft/device.h"

namespace millrace::soft {

struct Cq;

/**
 * A completion channel. Its descriptor is a poll set over the wake FIFO that peers write, the
 * process's presence descriptor (a peer's death makes it readable, R8) and a timer for work
 * requests that wait with a limit. So it can be watched by any event loop; a wake-up may find
 * nothing to do.
 */
struct Channel {
  ibv_comp_channel channel = {};
  Context* context = nullptr;
  uint32_t number = 0;  ///< of the FIFO, in this process
  base::Fd fifo;
  base::Fd timer;
  base::Fd poll_set;  ///< == channel.fd
  std::mutex lock;
  std::vector<Cq*> cqs;  ///< needs lock
  size_t next = 0;       ///< whose turn it is to report an event; needs lock

  static Channel& of(ibv_comp_channel* handle) { return *reinterpret_cast<Channel*>(handle); }
  /** Makes the descriptor readable. Any thread; a full FIFO is readable already. */
  void wake();
  /** The timer makes the descriptor readable at this monotonic time. */
  void wake_at(uint64_t ns);
};

ibv_comp_channel* create_comp_channel(ibv_context* context);
int destroy_comp_channel(ibv_comp_channel* channel);
int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);

}  // namespace millrace::soft
