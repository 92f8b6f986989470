#include "soft/flow.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>
#include <utility>

#include "soft/claims.h"
#include "soft/counters.h"
#include "soft/error.h"
#include "soft/feed.h"
#include "soft/flow_spec.h"
#include "soft/qp.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

constexpr const char* kWhat = "create a flow";

constexpr uint8_t kDontTrap = 1;
constexpr uint8_t kDrop = 2;
constexpr uint8_t kTagged = 4;

bool steering_is_off() {
  const char* text = getenv("MILLRACE_SOFT_STEERING");
  return text != nullptr && strcmp(text, "0") == 0;
}

/** After the change itself: who has the rules reads them again (R32). */
void tell(Root& root) {
  root.header().flows_changed.fetch_add(1);
  step("flows changed");
}

/** A private copy of a rule; false: there is none in this record. */
bool read_rule(const FlowRecord& record, uint32_t index, FlowRule* rule, uint32_t* device) {
  uint64_t word = 0;
  uint8_t kind = 0, flags = 0;
  const bool live = read_claim(record, &word, [&] {
    rule->match = record.match;
    rule->order = record.order;
    rule->priority = record.priority;
    rule->tag = record.tag;
    rule->qpn = record.qpn;
    rule->spread = record.spread;
    *device = record.device;
    kind = record.kind;
    flags = record.flags;
  });
  if (!live || kind > static_cast<uint8_t>(FlowKind::kSniffer) || *device >= kDevices) return false;
  // Values outside their masks could never match (I9).
  uint8_t* value = reinterpret_cast<uint8_t*>(&rule->match.value);
  const uint8_t* mask = reinterpret_cast<const uint8_t*>(&rule->match.mask);
  for (size_t i = 0; i < sizeof(PacketFields); ++i) value[i] &= mask[i];
  rule->kind = static_cast<FlowKind>(kind);
  rule->dont_trap = (flags & kDontTrap) != 0;
  rule->drop = (flags & kDrop) != 0;
  rule->tagged = (flags & kTagged) != 0;
  rule->record = index;
  rule->word = word;
  return true;
}

void write_rule(FlowRecord& record, const FlowRule& rule, uint32_t device) {
  record.match = rule.match;
  record.order = rule.order;
  record.priority = rule.priority;
  record.tag = rule.tag;
  record.qpn = rule.qpn;
  record.spread = rule.spread;
  record.device = static_cast<uint16_t>(device);
  record.kind = static_cast<uint8_t>(rule.kind);
  record.flags = static_cast<uint8_t>((rule.dont_trap ? kDontTrap : 0) | (rule.drop ? kDrop : 0) |
                                      (rule.tagged ? kTagged : 0));
  record.packets.store(0, std::memory_order_relaxed);
  record.bytes.store(0, std::memory_order_relaxed);
}

/** A record that nobody has, CREATING. ENOMEM, ENOSPC. Needs objects(). */
base::Result<uint32_t> claim_flow(Process& process) {
  Root& root = process.root();
  const auto claim = [&](uint32_t i) {
    ++process.flow_looks;
    return claim_record(root.flow(i).owner, process.owner());
  };
  while (!process.free_flows.empty()) {
    const uint32_t i = process.free_flows.back();
    process.free_flows.pop_back();
    if (claim(i)) return i;
  }
  // The whole table only when it may be full, and then twice as much of it comes into use: so a
  // creation looks at a few records, however many there are.
  for (;;) {
    const uint32_t count = root.flows();
    for (uint32_t n = 0; n < count; ++n) {
      const uint32_t i = (process.next_flow + n) % count;
      if (!claim(i)) continue;
      process.next_flow = i + 1;
      return i;
    }
    if (base::Status status = root.reserve_flows(); !status.ok()) return status;
    process.next_flow = count;
  }
}

base::Status check_flow(const Qp& qp, const FlowRequest& request) {
  const auto refuse = [](int code, const char* why) {
    return base::Status::error(code, kWhat, why);
  };
  if (steering_is_off()) return refuse(ENXIO, "steering is off (MILLRACE_SOFT_STEERING=0)");
  if (qp.type() != IBV_QPT_RAW_PACKET && qp.type() != IBV_QPT_UD)
    return refuse(EINVAL, "flows are for RAW_PACKET and UD QPs");
  if (request.port != kPorts) {
    return base::Status::error(
        EINVAL, kWhat, base::format("port %u does not exist; there is port 1", request.port));
  }
  if (qp.context->link != Link::kEthernet)
    return refuse(EOPNOTSUPP, "an InfiniBand port carries no Ethernet frames to match");
  for (ibv_counters* counters : request.counters) {
    if (counters->context != qp.context->handle())
      return refuse(EINVAL, "the counters are of another context");
  }
  return base::Status::success();
}

}  // namespace

bool may_use_raw_frames() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_NET_RAW / 32].effective & (1u << (CAP_NET_RAW % 32))) != 0;
}

bool may_use_raw_frames(const Context& context) {
  return may_use_raw_frames() || (context.feed != nullptr && context.feed->unprivileged());
}

std::shared_ptr<const FlowTable> flow_table(Process& process,
                                            const std::shared_ptr<const FlowTable>& known) {
  Root& root = process.root();
  // First the count, then the table: a change after this look shows at the next (R32).
  const uint64_t now = root.header().flows_changed.load();
  if (known != nullptr && known->changes == now) return known;
  std::lock_guard registry(process.registry());
  if (process.flows != nullptr && process.flows->changes == now) return process.flows;
  auto table = std::make_shared<FlowTable>();
  std::vector<FlowRule> rules[kDevices];
  for (uint32_t i = 0; i < root.flows(); ++i) {
    FlowRule rule;
    uint32_t device = 0;
    if (!read_rule(root.flow(i), i, &rule, &device)) continue;
    if (rule.spread != 0)
      table->spreads.try_emplace(rule.spread, read_spread(root, rule.spread - 1));
    rules[device].push_back(rule);
  }
  table->changes = now;
  for (uint32_t k = 0; k < kDevices; ++k) table->ports[k] = FlowIndex(std::move(rules[k]));
  process.flows = table;
  return table;
}

void count_frame(Process& process, const FlowEntry& rule, uint32_t bytes) {
  FlowRecord& record = process.root().flow(rule.record);
  // Another rule may be there by now.
  if (record.owner.load(std::memory_order_relaxed) != rule.word) return;
  record.packets.fetch_add(1, std::memory_order_relaxed);
  record.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

ibv_flow* create_flow(ibv_qp* handle, ibv_flow_attr* attr) {
  if (forked()) return fail_null(EPERM, kWhat, "this process was forked");
  Qp& qp = Qp::of(handle);
  if (!may_use_raw_frames(*qp.context))
    return fail_null(EPERM, kWhat, "this process has no CAP_NET_RAW, which flows need");
  base::Result<FlowRequest> request = read_flow(attr);
  if (!request.ok()) return fail_null(request.status());
  base::Status allowed = check_flow(qp, request.value());
  if (!allowed.ok()) return fail_null(allowed);
  Process& process = *qp.process;
  Root& root = process.root();
  std::lock_guard objects(process.objects());
  const base::Result<uint32_t> claimed = claim_flow(process);
  if (!claimed.ok()) return fail_null(claimed.status());
  const uint32_t i = claimed.value();
  FlowRecord& record = root.flow(i);
  step("flow claimed");
  FlowRule rule = request.value().rule;
  rule.order = root.header().next_flow.fetch_add(1);
  rule.qpn = qp.number;
  rule.spread = static_cast<uint16_t>(qp.spread);
  rule.record = i;
  if (Feed* feed = qp.context->feed.get()) {
    feed->bind(&rule.match);
    if (base::Status let_in = feed->admit(rule); !let_in.ok()) {
      record.owner.store(0);
      return fail_null(let_in);
    }
  }
  rule.match.mask.net = ~0u;  // 0 is the fabric's own switch
  write_rule(record, rule, qp.context->device);
  auto flow = std::make_unique<Flow>();
  flow->flow.context = qp.context->handle();
  flow->flow.handle = i;
  flow->qp = &qp;
  flow->record = i;
  flow->word = claim_live(process.owner(), process.next_number());
  for (ibv_counters* counters : request.value().counters) count_into(*flow, Counters::of(counters));
  record.owner.store(flow->word);
  step("flow announced");
  tell(root);
  qp.steered.fetch_add(1);
  qp.context->objects.fetch_add(1, std::memory_order_relaxed);
  return &flow.release()->flow;
}

int destroy_flow(ibv_flow* handle) {
  if (forked()) return fail(EPERM, "destroy a flow", "this process was forked");
  Flow* flow = &Flow::of(handle);
  Process& process = *flow->qp->process;
  std::lock_guard objects(process.objects());
  stop_counting(*flow);
  uint64_t word = flow->word;
  process.root().flow(flow->record).owner.compare_exchange_strong(word, 0);
  step("flow removed");
  process.free_flows.push_back(flow->record);
  tell(process.root());
  if (flow->qp->context->feed != nullptr) flow->qp->context->feed->retire(flow->record);
  flow->qp->steered.fetch_sub(1);
  flow->qp->context->objects.fetch_sub(1, std::memory_order_relaxed);
  delete flow;
  return 0;
}

}  // namespace millrace::soft
