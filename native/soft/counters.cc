#include "soft/counters.h"

#include <errno.h>

#include <algorithm>

#include "soft/error.h"
#include "soft/flow.h"

namespace millrace::soft {
namespace {

constexpr uint32_t kMaxIndex = 64;

/** What a flow has counted so far. */
void add_counts(const Flow& flow, uint64_t* packets, uint64_t* bytes, Process& process) {
  const FlowRecord& record = process.root().flow(flow.record);
  *packets += record.packets.load(std::memory_order_relaxed);
  *bytes += record.bytes.load(std::memory_order_relaxed);
}

}  // namespace

void count_into(Flow& flow, Counters& counters) {
  std::lock_guard lock(counters.lock);
  if (std::find(flow.counters.begin(), flow.counters.end(), &counters) != flow.counters.end())
    return;
  flow.counters.push_back(&counters);
  counters.flows.push_back(&flow);
}

void stop_counting(Flow& flow) {
  for (Counters* counters : flow.counters) {
    std::lock_guard lock(counters->lock);
    add_counts(flow, &counters->packets, &counters->bytes, *counters->context->process);
    std::erase(counters->flows, &flow);
  }
  flow.counters.clear();
}

ibv_counters* create_counters(ibv_context* handle, ibv_counters_init_attr* attr) {
  constexpr const char* kWhat = "create counters";
  if (forked()) return fail_null(EPERM, kWhat, "this process was forked");
  if (attr->comp_mask != 0) {
    return fail_null(EOPNOTSUPP, kWhat,
                     base::format("comp_mask is %#x and must be 0", attr->comp_mask));
  }
  Counters* counters = new Counters;
  counters->context = &Context::of(handle);
  counters->counters.context = handle;
  counters->context->objects.fetch_add(1, std::memory_order_relaxed);
  return &counters->counters;
}

int destroy_counters(ibv_counters* handle) {
  constexpr const char* kWhat = "destroy counters";
  if (forked()) return fail(EPERM, kWhat, "this process was forked");
  Counters* counters = &Counters::of(handle);
  {
    std::lock_guard lock(counters->lock);
    if (!counters->flows.empty())
      return fail(EBUSY, kWhat, base::format("%zu flows count here", counters->flows.size()));
  }
  counters->context->objects.fetch_sub(1, std::memory_order_relaxed);
  delete counters;
  return 0;
}

int attach_counters_point_flow(ibv_counters* handle, ibv_counter_attach_attr* attr,
                               ibv_flow* flow) {
  constexpr const char* kWhat = "attach a counter";
  Counters& counters = Counters::of(handle);
  if (attr->comp_mask != 0) {
    return fail(EOPNOTSUPP, kWhat, base::format("comp_mask is %#x and must be 0", attr->comp_mask));
  }
  if (attr->counter_desc != IBV_COUNTER_PACKETS && attr->counter_desc != IBV_COUNTER_BYTES)
    return fail(EOPNOTSUPP, kWhat, "only packets and bytes are counted");
  if (attr->index >= kMaxIndex)
    return fail(EINVAL, kWhat, base::format("index %u, below %u", attr->index, kMaxIndex));
  {
    std::lock_guard lock(counters.lock);
    counters.shown.push_back({attr->counter_desc, attr->index});
  }
  if (flow != nullptr) {
    std::lock_guard objects(counters.context->process->objects());
    count_into(Flow::of(flow), counters);
  }
  return 0;
}

int read_counters(ibv_counters* handle, uint64_t* values, uint32_t count, uint32_t flags) {
  constexpr const char* kWhat = "read counters";
  Counters& counters = Counters::of(handle);
  if ((flags & ~static_cast<uint32_t>(IBV_READ_COUNTERS_ATTR_PREFER_CACHED)) != 0)
    return fail(EOPNOTSUPP, kWhat, base::format("flags %#x has unknown bits", flags));
  std::lock_guard lock(counters.lock);
  for (const Counters::Shown& shown : counters.shown) {
    if (shown.index < count) continue;
    return fail(EINVAL, kWhat,
                base::format("room for %u values, and index %u is attached", count, shown.index));
  }
  uint64_t packets = counters.packets, bytes = counters.bytes;
  for (const Flow* flow : counters.flows)
    add_counts(*flow, &packets, &bytes, *counters.context->process);
  for (const Counters::Shown& shown : counters.shown)
    values[shown.index] = shown.what == IBV_COUNTER_PACKETS ? packets : bytes;
  return 0;
}

}  // namespace millrace::soft
