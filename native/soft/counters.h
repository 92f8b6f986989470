#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "soft/device.h"

namespace millrace::soft {

struct Flow;

/** Counters of flows. The numbers are in the flows' records; here is which of them are wanted. */
struct Counters {
  ibv_counters counters = {};
  Context* context = nullptr;

  std::mutex lock;
  // Needs lock.
  struct Shown {
    ibv_counter_description what;
    uint32_t index;
  };
  std::vector<Shown> shown;
  std::vector<Flow*> flows;
  uint64_t packets = 0;  ///< of flows that are gone
  uint64_t bytes = 0;

  static Counters& of(ibv_counters* handle) { return *reinterpret_cast<Counters*>(handle); }
};

/** From here on the flow's frames count there, too. */
void count_into(Flow& flow, Counters& counters);
/** The flow ends: what it counted stays. */
void stop_counting(Flow& flow);

}  // namespace millrace::soft
