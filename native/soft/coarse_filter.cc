#include "soft/coarse_filter.h"

#include <endian.h>
#include <linux/if_packet.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace millrace::soft {
namespace {

/** Of each field: three trees of at most seven instructions a range, and what is around them, stay
 * below the kernel's 4,096. */
constexpr size_t kRanges = 180;
constexpr uint32_t kWholeFrame = 0x40000;

using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

uint16_t code(unsigned bits) { return static_cast<uint16_t>(bits); }

/**
 * Puts a program together. Conditional jumps of the kernel's classic filters reach 255 instructions
 * and go forward only, so far ones are made of a short one and an unconditional one.
 */
class Assembler {
 public:
  using Label = size_t;
  Label label() {
    places_.push_back(0);
    return places_.size() - 1;
  }
  void here(Label label) { places_[label] = out_.size(); }

  void op(unsigned bits, uint32_t k = 0) { out_.push_back({code(bits), 0, 0, k}); }
  void load(unsigned size, uint32_t offset) { op(BPF_LD | size | BPF_ABS, offset); }
  void go(Label to) {
    fixes_.push_back({out_.size(), to});
    op(BPF_JMP | BPF_JA);
  }
  /** Jumps to `to` where the comparison of A with k holds. */
  void if_true(unsigned comparison, uint32_t k, Label to) {
    out_.push_back({code(BPF_JMP | comparison), 0, 1, k});
    go(to);
  }
  void if_false(unsigned comparison, uint32_t k, Label to) {
    out_.push_back({code(BPF_JMP | comparison), 1, 0, k});
    go(to);
  }

  /** A is in one of the sorted ranges [first, last): to `in`, else to `out`. */
  void search(const Ranges& ranges, size_t first, size_t last, Label in, Label out) {
    if (first == last) return go(out);
    if (last - first == 1) {
      const auto [lo, hi] = ranges[first];
      if (lo != 0) if_false(BPF_JGE | BPF_K, lo, out);
      if (hi != UINT32_MAX) if_true(BPF_JGT | BPF_K, hi, out);
      return go(in);
    }
    const size_t middle = first + (last - first) / 2;
    const Label left = label();
    if_false(BPF_JGE | BPF_K, ranges[middle].first, left);
    search(ranges, middle, last, in, out);
    here(left);
    search(ranges, first, middle, in, out);
  }

  std::vector<sock_filter> finish() {
    for (const auto& [at, to] : fixes_) out_[at].k = static_cast<uint32_t>(places_[to] - at - 1);
    return std::move(out_);
  }

 private:
  std::vector<sock_filter> out_;
  std::vector<size_t> places_;
  std::vector<std::pair<size_t, Label>> fixes_;
};

Ranges sorted(const RangeSet& set) { return {set.ranges().begin(), set.ranges().end()}; }

uint32_t word(const uint8_t* at) {
  uint32_t value;
  memcpy(&value, at, 4);
  return be32toh(value);
}

}  // namespace

bool RangeSet::add(uint32_t lo, uint32_t hi) {
  auto next = ranges_.upper_bound(lo);
  if (next != ranges_.begin()) {
    const auto before = std::prev(next);
    if (before->second >= hi) return false;
    if (before->second >= lo || before->second + 1 == lo) {
      lo = before->first;
      next = ranges_.erase(before);
    }
  }
  while (next != ranges_.end() && (next->first <= hi || next->first - 1 == hi)) {
    hi = std::max(hi, next->second);
    next = ranges_.erase(next);
  }
  ranges_.emplace(lo, hi);
  return true;
}

void RangeSet::coarsen(size_t count) {
  if (ranges_.size() <= count) return;
  std::vector<uint32_t> gaps;
  for (auto at = ranges_.begin(); std::next(at) != ranges_.end(); ++at)
    gaps.push_back(std::next(at)->first - at->second);
  const auto last = gaps.begin() + static_cast<ptrdiff_t>(ranges_.size() - count - 1);
  std::nth_element(gaps.begin(), last, gaps.end());
  const uint32_t largest = *last;
  auto as_large = std::count(gaps.begin(), last + 1, largest);  // of those not all, maybe
  for (auto at = ranges_.begin(); std::next(at) != ranges_.end();) {
    const auto next = std::next(at);
    const uint32_t gap = next->first - at->second;
    if (gap > largest || (gap == largest && as_large-- <= 0)) {
      at = next;
      continue;
    }
    at->second = next->second;
    ranges_.erase(next);
  }
}

bool CoarseFilter::Values::add(uint32_t value, uint32_t mask) {
  if (all) return false;
  if (mask == 0) return all = true;
  // Whatever the mask: between the value with all other bits clear and with all of them set.
  if (!set.add(value, value | ~mask)) return false;
  // Not down to the next one, or every value would cost a look at all.
  if (set.ranges().size() > kRanges) set.coarsen(kRanges / 2);
  return true;
}

bool CoarseFilter::add_all() { return !std::exchange(everything_, true); }

bool CoarseFilter::add(const FlowMatch& match) {
  if (everything_) return false;
  const HeaderFields& value = match.value.outer;
  const HeaderFields& mask = match.mask.outer;
  bool changed = false;
  if ((mask.layers & kLayerIpv4) != 0) {
    changed |= !std::exchange(ipv4_, true);
    changed |= dst4_.add(word(value.dst_ip), word(mask.dst_ip));
  } else if ((mask.layers & kLayerIpv6) != 0) {
    changed |= !std::exchange(ipv6_, true);
    changed |= dst6_.add(word(value.dst_ip + 12), word(mask.dst_ip + 12));
  } else if ((mask.layers & (kLayerUdp | kLayerTcp)) != 0) {
    // A port, whatever carries it.
    changed |= !std::exchange(ipv4_, true) | !std::exchange(ipv6_, true);
    changed |= dst4_.add(0, 0) | dst6_.add(0, 0);
  } else {
    return add_all();
  }
  const bool has_ports = (mask.layers & (kLayerUdp | kLayerTcp)) != 0;
  const uint32_t port = has_ports ? be16toh(value.dst_port) : 0u;
  const uint32_t bits = has_ports ? be16toh(mask.dst_port) : 0u;
  // The upper half of a port in 32 bits is never set.
  return ports_.add(port, bits != 0 ? bits | 0xFFFF0000u : 0u) || changed;
}

std::vector<sock_filter> CoarseFilter::program() const {
  Assembler a;
  const auto accept = a.label(), reject = a.label();
  if (!outgoing_) {
    a.load(BPF_W, static_cast<uint32_t>(SKF_AD_OFF + SKF_AD_PKTTYPE));
    a.if_true(BPF_JEQ | BPF_K, PACKET_OUTGOING, reject);
  }
  if (!everything_) {
    constexpr uint32_t kIpv4 = 0x0800, kIpv6 = 0x86DD, kVlan = 0x8100, kServiceVlan = 0x88A8;
    constexpr uint32_t kEth = 14;
    const auto v4 = a.label(), v6 = a.label(), ports = a.label();
    a.load(BPF_H, 12);
    a.if_true(BPF_JEQ | BPF_K, kIpv4, ipv4_ ? v4 : reject);
    a.if_true(BPF_JEQ | BPF_K, kIpv6, ipv6_ ? v6 : reject);
    // The first tag is not in the frame any more; what has a second one is not looked into here.
    a.if_true(BPF_JEQ | BPF_K, kVlan, accept);
    a.if_true(BPF_JEQ | BPF_K, kServiceVlan, accept);
    a.go(reject);
    const auto address = [&](const Values& values, uint32_t offset) {
      if (values.all) return;
      const auto in = a.label();
      a.load(BPF_W, offset);
      const Ranges ranges = sorted(values.set);
      a.search(ranges, 0, ranges.size(), in, reject);
      a.here(in);
    };
    if (ipv4_) {
      a.here(v4);
      a.op(BPF_LD | BPF_W | BPF_LEN);
      a.if_false(BPF_JGE | BPF_K, kEth + 20, accept);
      address(dst4_, kEth + 16);
      if (ports_.all) {
        a.go(accept);
      } else {
        a.load(BPF_H, kEth + 6);
        a.if_true(BPF_JSET | BPF_K, 0x3FFF, accept);  // a fragment
        a.load(BPF_B, kEth + 9);
        const auto transport = a.label();
        a.if_true(BPF_JEQ | BPF_K, 17, transport);
        a.if_true(BPF_JEQ | BPF_K, 6, transport);
        a.go(accept);
        a.here(transport);
        a.op(BPF_LDX | BPF_B | BPF_MSH, kEth);
        a.op(BPF_MISC | BPF_TXA);
        a.if_false(BPF_JGE | BPF_K, 20, accept);  // that is no length of a header
        a.op(BPF_LD | BPF_W | BPF_LEN);
        a.op(BPF_ALU | BPF_SUB | BPF_K, kEth + 4);
        a.if_false(BPF_JGE | BPF_X, 0, accept);
        a.op(BPF_LD | BPF_H | BPF_IND, kEth + 2);
        a.go(ports);
      }
    }
    if (ipv6_) {
      a.here(v6);
      a.op(BPF_LD | BPF_W | BPF_LEN);
      a.if_false(BPF_JGE | BPF_K, kEth + 40 + 4, accept);
      address(dst6_, kEth + 36);
      if (ports_.all) {
        a.go(accept);
      } else {
        a.load(BPF_B, kEth + 6);
        const auto transport = a.label();
        a.if_true(BPF_JEQ | BPF_K, 17, transport);
        a.if_true(BPF_JEQ | BPF_K, 6, transport);
        a.go(accept);  // extension headers, fragments
        a.here(transport);
        a.load(BPF_H, kEth + 40 + 2);
        a.go(ports);
      }
    }
    a.here(ports);
    const Ranges ranges = sorted(ports_.set);
    if ((ipv4_ || ipv6_) && !ports_.all) a.search(ranges, 0, ranges.size(), accept, reject);
  }
  a.here(accept);
  a.op(BPF_RET | BPF_K, kWholeFrame);
  a.here(reject);
  a.op(BPF_RET | BPF_K, 0);
  return a.finish();
}

}  // namespace millrace::soft
