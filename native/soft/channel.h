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
 * process's presence descriptor (a peer's death makes it readable, R8) and the context's own FIFO
 * and timer, for work requests that wait. So it can be watched by any event loop; a wake-up may
 * find nothing to do.
 */
struct Channel {
  ibv_comp_channel channel = {};
  Context* context = nullptr;
  uint32_t number = 0;  ///< of the FIFO, in this process
  WakeFifo fifo;
  base::Fd poll_set;  ///< == channel.fd
  std::mutex lock;
  std::vector<Cq*> cqs;  ///< needs lock
  size_t next = 0;       ///< whose turn it is to report an event; needs lock

  static Channel& of(ibv_comp_channel* handle) { return *reinterpret_cast<Channel*>(handle); }
  /** Makes the descriptor readable. Any thread. */
  void wake(const WakeUp& wake_up = {}) { fifo.wake(wake_up); }
  /** Makes the descriptors of the context readable at this monotonic time. */
  void wake_at(uint64_t ns) { context->alarm.at(ns); }
};

ibv_comp_channel* create_comp_channel(ibv_context* context);
/** EBUSY while a CQ uses it. */
int destroy_comp_channel(ibv_comp_channel* channel);
/**
 * The next CQ with an event; waits for one unless the descriptor is non-blocking (EAGAIN). While it
 * waits, work requests of the context that wait go on.
 */
int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);

}  // namespace millrace::soft
