// What it costs to find the rule of a frame, and to count it there as the device does: N rules for
// UDP to an address and a port, frames to eight of them (hot) or to all in no order (spread).
// Prints a line of JSON: ns for each, by the number of rules.
//   match [ROUNDS]
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <vector>

#include "soft/flow_index.h"
#include "soft/layout.h"

namespace {

using namespace millrace::soft;

constexpr uint32_t kMatches = 1 << 20;
constexpr uint32_t kHot = 8;

double now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

/** Spreads numbers over 32 bits, one to one. */
uint32_t scatter(uint32_t n) { return (n + 1) * 2654435761u; }

void address(PacketFields* fields, uint32_t rule) {
  const uint32_t to = htobe32(scatter(rule));
  memcpy(fields->outer.dst_ip, &to, sizeof(to));
}

PacketFields frame() {
  PacketFields fields = {};
  fields.outer.layers = kLayerEth | kLayerIpv4 | kLayerUdp;
  fields.outer.ether_type = htobe16(0x0800);
  fields.outer.protocol = 17;
  fields.outer.dst_port = htobe16(5001);
  fields.interface = 2;
  return fields;
}

FlowIndex table(uint32_t rules) {
  std::vector<FlowRule> all(rules);
  for (uint32_t i = 0; i < rules; ++i) {
    FlowRule& rule = all[i];
    rule.qpn = rule.record = i;
    rule.order = i;
    rule.match.value = frame();
    address(&rule.match.value, i);
    PacketFields& mask = rule.match.mask;
    mask.outer.layers = kLayerIpv4 | kLayerUdp;
    rule.match.value.outer.layers = mask.outer.layers;
    rule.match.value.outer.ether_type = 0;
    memset(mask.outer.dst_ip, 0xFF, 4);
    mask.outer.dst_port = 0xFFFF;
    mask.outer.protocol = 0xFF;
    mask.interface = ~0u;
  }
  return FlowIndex(std::move(all));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 5;
  for (const uint32_t rules : {64u, 1000u, 10'000u}) {
    const FlowIndex index = table(rules);
    std::vector<FlowRecord> records(rules);
    FlowIndex::Result result;
    PacketFields fields = frame();
    printf("{\"rules\":%u", rules);
    for (const bool hot : {true, false}) {
      for (const bool count : {false, true}) {
        std::vector<double> times;
        for (int round = 0; round < rounds; ++round) {
          uint32_t random = 1;
          const double start = now_ns();
          for (uint32_t i = 0; i < kMatches; ++i) {
            random = random * 1664525u + 1013904223u;
            const auto rule = static_cast<uint32_t>(uint64_t{random} * (hot ? kHot : rules) >> 32);
            address(&fields, rule);
            index.match(fields, false, &result);
            if (result.winners.size() != 1 || result.winners[0]->qpn != rule) return 1;
            if (!count) continue;
            FlowRecord& record = records[rule];
            record.packets.fetch_add(1, std::memory_order_relaxed);
            record.bytes.fetch_add(64, std::memory_order_relaxed);
          }
          times.push_back((now_ns() - start) / kMatches);
        }
        printf(",\"%s%s\":%.1f", hot ? "hot" : "spread", count ? "Counted" : "",
               *std::min_element(times.begin(), times.end()));
      }
    }
    printf("}\n");
  }
  return 0;
}
