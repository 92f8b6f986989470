// Flow attributes of any content: read within their size, and a frame is matched by an index just
// as it is by looking at the rule alone.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "soft/flow_index.h"
#include "soft/flow_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::soft;
  if (size < sizeof(ibv_flow_attr)) return 0;
  std::unique_ptr<uint8_t[]> attr(new uint8_t[size]);
  memcpy(attr.get(), data, size);
  auto request = read_flow(reinterpret_cast<const ibv_flow_attr*>(attr.get()), size);
  if (!request.ok()) return 0;
  const FlowRule rule = request.value().rule;
  PacketFields fields;
  PacketLayout layout;
  if (!parse_frame(data, size, &fields, &layout)) return 0;
  const FlowIndex index({rule});
  FlowIndex::Result result;
  index.match(fields, is_multicast_frame(data), &result);
  if (rule.kind != FlowKind::kNormal) return 0;
  uint64_t f[PacketFields::kWords], v[PacketFields::kWords], m[PacketFields::kWords];
  memcpy(f, &fields, sizeof(f));
  memcpy(v, &rule.match.value, sizeof(v));
  memcpy(m, &rule.match.mask, sizeof(m));
  bool matches = true;
  for (size_t i = 0; i < PacketFields::kWords; ++i) matches &= (f[i] & m[i]) == v[i];
  const bool taken = !result.winners.empty() || result.dropped_by != nullptr;
  if (matches != taken) abort();
  return 0;
}
