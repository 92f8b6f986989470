// The kernel's filter for any rules, run on any frame: a program that the kernel takes, and that
// lets through whatever one of the rules matches.
#include <endian.h>
#include <linux/filter.h>
#include <linux/if_packet.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "soft/coarse_filter.h"
#include "soft/flow_index.h"
#include "soft/flow_spec.h"

namespace {

using namespace millrace::soft;

/** A classic program as Linux runs it: a load beyond the frame rejects it. Aborts where Linux would
 * not take the program. */
bool passes(const std::vector<sock_filter>& program, const uint8_t* frame, size_t bytes) {
  if (program.empty() || program.size() > BPF_MAXINSNS) abort();
  uint32_t a = 0, x = 0;
  const auto load = [&](uint64_t at, unsigned size, uint32_t* out) {
    if (at + size > bytes) return false;
    *out = 0;
    for (unsigned i = 0; i < size; ++i) *out = *out << 8 | frame[at + i];
    return true;
  };
  const auto width = [](uint16_t code) {
    return BPF_SIZE(code) == BPF_W ? 4u : BPF_SIZE(code) == BPF_H ? 2u : 1u;
  };
  for (size_t pc = 0;; ++pc) {
    if (pc >= program.size()) abort();
    const auto [code, jt, jf, k] = program[pc];
    switch (BPF_CLASS(code)) {
      case BPF_RET:
        return k != 0;
      case BPF_LD: {
        if (BPF_MODE(code) == BPF_LEN) {
          a = static_cast<uint32_t>(bytes);
        } else if (BPF_MODE(code) == BPF_ABS && k == uint32_t(SKF_AD_OFF + SKF_AD_PKTTYPE)) {
          a = PACKET_HOST;
        } else {
          if (BPF_MODE(code) != BPF_ABS && BPF_MODE(code) != BPF_IND) abort();
          if (!load(uint64_t{k} + (BPF_MODE(code) == BPF_IND ? x : 0), width(code), &a))
            return false;
        }
        break;
      }
      case BPF_LDX:
        if (BPF_MODE(code) != BPF_MSH) abort();
        if (!load(k, 1, &x)) return false;
        x = (x & 15) * 4;
        break;
      case BPF_MISC:
        if (BPF_MISCOP(code) != BPF_TXA) abort();
        a = x;
        break;
      case BPF_ALU:
        if (BPF_OP(code) != BPF_SUB || BPF_SRC(code) != BPF_K) abort();
        a -= k;
        break;
      case BPF_JMP: {
        const uint32_t with = BPF_SRC(code) == BPF_X ? x : k;
        const uint8_t op = BPF_OP(code);
        if (op == BPF_JA) {
          pc += k;
          break;
        }
        const bool yes = op == BPF_JEQ   ? a == with
                         : op == BPF_JGT ? a > with
                         : op == BPF_JGE ? a >= with
                                         : (a & with) != 0;
        pc += yes ? jt : jf;
        break;
      }
      default:
        abort();
    }
  }
}

}  // namespace

/** Rules as flow attributes, each behind its length (16 bits), ended by a zero; then the frame. */
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<FlowRule> rules;
  CoarseFilter filter;
  for (;;) {
    uint16_t length = 0;
    if (size < sizeof(length)) return 0;
    memcpy(&length, data, sizeof(length));
    data += sizeof(length);
    size -= sizeof(length);
    if (length == 0) break;
    if (length < sizeof(ibv_flow_attr) || length > size) return 0;
    std::vector<uint8_t> attr(data, data + length);
    data += length;
    size -= length;
    auto request = read_flow(reinterpret_cast<const ibv_flow_attr*>(attr.data()), length);
    if (!request.ok() || request.value().rule.kind != FlowKind::kNormal) continue;
    rules.push_back(request.value().rule);
    filter.add(rules.back().match);
  }
  PacketFields fields;
  PacketLayout layout;
  const std::vector<uint8_t> frame(data, data + size);
  if (!parse_frame(frame.data(), frame.size(), &fields, &layout)) return 0;
  const bool through = passes(filter.program(), frame.data(), frame.size());
  FlowIndex::Result result;
  FlowIndex(rules).match(fields, is_multicast_frame(frame.data()), &result);
  const bool matches = !result.winners.empty() || result.dropped_by != nullptr;
  if (matches && !through) abort();
  // As the kernel holds a frame whose tag it took out.
  constexpr size_t kAddresses = 12, kTag = 4;
  if (frame.size() < kMinFrame) return 0;
  std::vector<uint8_t> tagged(frame);
  const uint8_t tag[kTag] = {0x81, 0, 0, 7};
  tagged.insert(tagged.begin() + kAddresses, tag, tag + kTag);
  parse_frame(tagged.data(), tagged.size(), &fields, &layout);
  FlowIndex(rules).match(fields, is_multicast_frame(frame.data()), &result);
  if ((!result.winners.empty() || result.dropped_by != nullptr) && !through) abort();
  return 0;
}
