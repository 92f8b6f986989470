#include "soft/flow_index.h"

#include <string.h>

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

namespace millrace::soft {
namespace {

int compare(const PacketFields& a, const PacketFields& b) { return memcmp(&a, &b, sizeof(a)); }

/** What a rule without specs matches: where the frame came in. */
bool came_in_at(const FlowRule& rule, const PacketFields& fields) {
  const PacketFields& value = rule.match.value;
  const PacketFields& mask = rule.match.mask;
  return (fields.net & mask.net) == value.net &&
         (fields.interface & mask.interface) == value.interface;
}

/** Adds a rule's copy unless its QP has one. */
void add(std::vector<const FlowEntry*>& winners, const FlowEntry* rule) {
  for (const FlowEntry* known : winners) {
    if (known->qpn == rule->qpn && known->kind != FlowKind::kSniffer) return;
  }
  winners.push_back(rule);
}

/** Takes the rules of one priority with one match as the winners. False: the frame goes no further.
 */
bool award(const std::vector<const FlowEntry*>& equals, FlowIndex::Result* result) {
  bool goes_on = true;
  for (const FlowEntry* rule : equals) {
    if (rule->drop) {
      result->dropped_by = rule;
      result->winners.clear();
      return false;
    }
    add(result->winners, rule);
    goes_on &= rule->dont_trap;
  }
  return goes_on;
}

using Words = uint64_t[PacketFields::kWords];

uint64_t hash(const uint64_t* key, uint8_t count) {
  uint64_t h = 0x9E3779B97F4A7C15u;
  for (uint8_t n = 0; n < count; ++n) {
    h = (h ^ key[n]) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 32;
  }
  return h;
}

/** A run as one word of a slot, never 0. */
constexpr uint64_t run_of(size_t begin, uint32_t length) { return uint64_t{begin} << 32 | length; }
constexpr uint32_t run_begin(uint64_t run) { return static_cast<uint32_t>(run >> 32); }
constexpr uint32_t run_length(uint64_t run) { return static_cast<uint32_t>(run); }

}  // namespace

FlowIndex::FlowIndex(std::vector<FlowRule> rules) {
  std::vector<FlowRule*> sorted;
  std::vector<const FlowRule*> normal;
  for (FlowRule& rule : rules) sorted.push_back(&rule);
  std::stable_sort(sorted.begin(), sorted.end(), [](const FlowRule* a, const FlowRule* b) {
    return std::tie(a->priority, a->order) < std::tie(b->priority, b->order);
  });
  for (uint32_t place = 0; FlowRule * rule : sorted) rule->place = place++;
  for (const FlowRule* rule : sorted) {
    if (rule->kind == FlowKind::kSniffer) {
      sniffers_.push_back(*rule);
    } else if (rule->kind != FlowKind::kNormal) {
      defaults_.push_back(*rule);
    } else {
      normal.push_back(rule);
    }
  }
  std::stable_sort(normal.begin(), normal.end(), [](const FlowRule* a, const FlowRule* b) {
    const int masks = compare(a->match.mask, b->match.mask);
    return masks != 0 ? masks < 0 : compare(a->match.value, b->match.value) < 0;
  });
  for (auto begin = normal.begin(); begin != normal.end();) {
    const auto end = std::find_if(begin, normal.end(), [begin](const FlowRule* rule) {
      return compare(rule->match.mask, (*begin)->match.mask) != 0;
    });
    add_group({begin, end});
    begin = end;
  }
  // Strongest first: matching stops at the first group that can't win any more.
  std::stable_sort(groups_.begin(), groups_.end(),
                   [](const Group& a, const Group& b) { return a.best < b.best; });
}

void FlowIndex::add_group(std::span<const FlowRule* const> rules) {
  Group& group = groups_.emplace_back();
  memcpy(group.mask, &rules[0]->match.mask, sizeof(group.mask));
  memcpy(group.value, &rules[0]->match.value, sizeof(group.value));
  std::vector<uint64_t> runs;
  Words differ = {};
  for (size_t i = 0; i < rules.size(); ++i) {
    const FlowRule& rule = *rules[i];
    const size_t entry = entries_.size();
    entries_.push_back(rule);
    group.best = std::min(group.best, rule.priority);
    if (i != 0 && compare(rule.match.value, rules[i - 1]->match.value) == 0) {
      ++runs.back();
      continue;
    }
    runs.push_back(run_of(entry, 1));
    Words value;
    memcpy(value, &rule.match.value, sizeof(value));
    for (uint8_t w = 0; w < PacketFields::kWords; ++w) differ[w] |= value[w] ^ group.value[w];
  }
  for (uint8_t w = 0; w < PacketFields::kWords; ++w) {
    if (differ[w] != 0) {
      group.own[group.own_count++] = w;
    } else if (group.mask[w] != 0) {
      group.shared[group.shared_count++] = w;
    }
  }
  group.slot_words = std::bit_ceil(1u + group.own_count);
  const uint64_t slots = std::bit_ceil(2 * runs.size());
  group.slot_mask = slots - 1;
  constexpr size_t kLineWords = sizeof(Line) / sizeof(uint64_t);
  group.lines.resize((slots * group.slot_words + kLineWords - 1) / kLineWords);
  size_t at = 0;
  for (const uint64_t run : runs) {
    Words value, key;
    memcpy(value, &rules[at]->match.value, sizeof(value));
    at += run_length(run);
    for (uint8_t n = 0; n < group.own_count; ++n) key[n] = value[group.own[n]];
    uint64_t number = hash(key, group.own_count);
    while (*group.slot(number) != 0) ++number;
    uint64_t* const slot = group.slot(number);
    slot[0] = run;
    std::copy_n(key, group.own_count, slot + 1);
  }
}

FlowIndex::Run FlowIndex::find(const Group& group, const uint64_t* words) const {
  for (uint8_t n = 0; n < group.shared_count; ++n) {
    const uint8_t i = group.shared[n];
    if ((words[i] & group.mask[i]) != group.value[i]) return {};
  }
  Words key;
  for (uint8_t n = 0; n < group.own_count; ++n) {
    const uint8_t i = group.own[n];
    key[n] = words[i] & group.mask[i];
  }
  for (uint64_t number = hash(key, group.own_count);; ++number) {
    const uint64_t* const slot = group.slot(number);
    if (slot[0] == 0) return {};
    if (!std::equal(key, key + group.own_count, slot + 1)) continue;
    const FlowEntry* const first = entries_.data() + run_begin(slot[0]);
    return {first, first + run_length(slot[0])};
  }
}

void FlowIndex::match(const PacketFields& fields, bool multicast, Result* result) const {
  result->winners.clear();
  result->dropped_by = nullptr;
  result->runs.clear();
  Words words;
  memcpy(words, &fields, sizeof(words));
  bool goes_on = true;
  size_t next_group = 0;
  while (goes_on) {
    // The strongest rule among the runs known so far; further groups only while they may beat it.
    const FlowEntry* best = nullptr;
    size_t chosen = 0;
    const auto choose = [&](size_t r) {
      const Run& run = result->runs[r];
      if (run.at == run.end || (best != nullptr && run.at->place > best->place)) return;
      best = run.at;
      chosen = r;
    };
    for (size_t r = 0; r < result->runs.size(); ++r) choose(r);
    while (next_group < groups_.size() &&
           (best == nullptr || groups_[next_group].best <= best->priority)) {
      const Run run = find(groups_[next_group++], words);
      if (run.at == run.end) continue;
      result->runs.push_back(run);
      choose(result->runs.size() - 1);
    }
    if (best == nullptr) break;
    result->equals.clear();
    Run& run = result->runs[chosen];
    while (run.at != run.end && run.at->priority == best->priority)
      result->equals.push_back(run.at++);
    goes_on = award(result->equals, result);
  }

  size_t d = 0;
  while (goes_on && d < defaults_.size()) {
    result->equals.clear();
    const uint16_t priority = defaults_[d].priority;
    for (; d < defaults_.size() && defaults_[d].priority == priority; ++d) {
      if (!came_in_at(defaults_[d], fields)) continue;
      if (multicast || defaults_[d].kind == FlowKind::kAllDefault)
        result->equals.push_back(&defaults_[d]);
    }
    if (!result->equals.empty()) goes_on = award(result->equals, result);
  }
  for (const FlowRule& sniffer : sniffers_) {
    if (came_in_at(sniffer, fields)) result->winners.push_back(&sniffer);
  }
}

}  // namespace millrace::soft
