#include "soft/flow_index.h"

#include <string.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace millrace::soft {
namespace {

/** How a run of identical matches is ordered inside. */
bool stronger(const FlowRule& a, const FlowRule& b) {
  return std::tie(a.priority, a.order) < std::tie(b.priority, b.order);
}

/** What a rule without specs matches: where the frame came in. */
bool came_in_at(const FlowRule& rule, const PacketFields& fields) {
  const PacketFields& value = rule.match.value;
  const PacketFields& mask = rule.match.mask;
  return (fields.net & mask.net) == value.net &&
         (fields.interface & mask.interface) == value.interface;
}

bool is_drop(const std::vector<const FlowRule*>& run) {
  return std::any_of(run.begin(), run.end(), [](const FlowRule* rule) { return rule->drop; });
}

/** Adds a rule's copy unless its QP has one. */
void add(std::vector<const FlowRule*>& winners, const FlowRule* rule) {
  for (const FlowRule* known : winners) {
    if (known->qpn == rule->qpn && known->kind != FlowKind::kSniffer) return;
  }
  winners.push_back(rule);
}

/**
 * Takes the rules of one priority with one match (`run`) as the winners. False: the frame goes no
 * further.
 */
bool award(const std::vector<const FlowRule*>& run, FlowIndex::Result* result) {
  if (is_drop(run)) {
    result->dropped_by = run.front();
    result->winners.clear();
    return false;
  }
  bool goes_on = true;
  for (const FlowRule* rule : run) {
    add(result->winners, rule);
    goes_on &= rule->dont_trap;
  }
  return goes_on;
}

}  // namespace

uint64_t FlowIndex::hash(const Group& group, const uint64_t* words) {
  uint64_t h = 0x9E3779B97F4A7C15u;
  for (uint8_t n = 0; n < group.used_count; ++n) {
    const uint8_t i = group.used[n];
    h = (h ^ (words[i] & group.words[i])) * 0xFF51AFD7ED558CCDu;
    h ^= h >> 32;
  }
  return h;
}

bool FlowIndex::same_match(const FlowRule& a, const FlowRule& b) const {
  return memcmp(&a.match, &b.match, sizeof(FlowMatch)) == 0;
}

FlowIndex::FlowIndex(std::vector<FlowRule> rules) {
  for (FlowRule& rule : rules) {
    if (rule.kind == FlowKind::kSniffer) {
      sniffers_.push_back(rule);
    } else if (rule.kind != FlowKind::kNormal) {
      defaults_.push_back(rule);
    } else {
      rules_.push_back(rule);
    }
  }
  std::sort(sniffers_.begin(), sniffers_.end(), stronger);
  std::sort(defaults_.begin(), defaults_.end(), stronger);
  std::sort(rules_.begin(), rules_.end(), [](const FlowRule& a, const FlowRule& b) {
    const int masks = memcmp(&a.match.mask, &b.match.mask, sizeof(PacketFields));
    if (masks != 0) return masks < 0;
    const int values = memcmp(&a.match.value, &b.match.value, sizeof(PacketFields));
    if (values != 0) return values < 0;
    return stronger(a, b);
  });
  for (uint32_t i = 0; i < rules_.size(); ++i) {
    const FlowRule& rule = rules_[i];
    const bool new_mask =
        i == 0 || memcmp(&rule.match.mask, &rules_[i - 1].match.mask, sizeof(PacketFields)) != 0;
    if (new_mask) {
      Group& group = groups_.emplace_back();
      memcpy(group.words, &rule.match.mask, sizeof(group.words));
      for (uint8_t w = 0; w < PacketFields::kWords; ++w) {
        if (group.words[w] != 0) group.used[group.used_count++] = w;
      }
    }
    Group& group = groups_.back();
    group.best = std::min(group.best, rule.priority);
    if (new_mask || !same_match(rule, rules_[i - 1])) {
      uint64_t words[PacketFields::kWords];
      memcpy(words, &rule.match.value, sizeof(words));
      group.table.emplace(hash(group, words), i);
    }
  }
  // Strongest first: matching stops at the first group that can't win any more.
  std::stable_sort(groups_.begin(), groups_.end(),
                   [](const Group& a, const Group& b) { return a.best < b.best; });
}

const FlowRule* FlowIndex::find(const Group& group, const uint64_t* words) const {
  auto [at, end] = group.table.equal_range(hash(group, words));
  for (; at != end; ++at) {
    const FlowRule& rule = rules_[at->second];
    uint64_t value[PacketFields::kWords];
    memcpy(value, &rule.match.value, sizeof(value));
    bool equal = true;
    for (uint8_t n = 0; n < group.used_count && equal; ++n) {
      const uint8_t i = group.used[n];
      equal = (words[i] & group.words[i]) == value[i];
    }
    if (equal) return &rule;
  }
  return nullptr;
}

void FlowIndex::match(const PacketFields& fields, bool multicast, Result* result) const {
  result->winners.clear();
  result->dropped_by = nullptr;
  uint64_t words[PacketFields::kWords];
  memcpy(words, &fields, sizeof(words));

  // A run that matches, cut at its position: what of it was not looked at yet.
  struct Candidate {
    const FlowRule* at;
    const FlowRule* end;
  };
  Candidate candidates[64];
  size_t count = 0;
  std::vector<const FlowRule*> run;
  bool goes_on = true;
  size_t next_group = 0;
  while (goes_on) {
    // The strongest rule among the runs known so far; further groups only while they may beat it.
    const FlowRule* best = nullptr;
    size_t chosen = 0;
    const auto choose = [&](size_t c) {
      const FlowRule* rule = candidates[c].at;
      if (rule == candidates[c].end) return;
      if (best == nullptr || stronger(*rule, *best)) {
        best = rule;
        chosen = c;
      }
    };
    for (size_t c = 0; c < count; ++c) choose(c);
    while (next_group < groups_.size() && count < 64 &&
           (best == nullptr || groups_[next_group].best <= best->priority)) {
      const FlowRule* first = find(groups_[next_group++], words);
      if (first == nullptr) continue;
      const FlowRule* end = first;
      const FlowRule* const last = rules_.data() + rules_.size();
      while (end != last && same_match(*end, *first)) ++end;
      candidates[count] = {first, end};
      choose(count++);
    }
    if (best == nullptr) break;
    run.clear();
    Candidate& candidate = candidates[chosen];
    while (candidate.at != candidate.end && candidate.at->priority == best->priority)
      run.push_back(candidate.at++);
    goes_on = award(run, result);
  }

  size_t d = 0;
  while (goes_on && d < defaults_.size()) {
    run.clear();
    const uint16_t priority = defaults_[d].priority;
    for (; d < defaults_.size() && defaults_[d].priority == priority; ++d) {
      if (!came_in_at(defaults_[d], fields)) continue;
      if (multicast || defaults_[d].kind == FlowKind::kAllDefault) run.push_back(&defaults_[d]);
    }
    if (!run.empty()) goes_on = award(run, result);
  }
  for (const FlowRule& sniffer : sniffers_) {
    if (came_in_at(sniffer, fields)) result->winners.push_back(&sniffer);
  }
}

}  // namespace millrace::soft
