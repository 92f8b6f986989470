#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "soft/packet.h"

namespace millrace::soft {

enum class FlowKind : uint8_t { kNormal = 0, kAllDefault = 1, kMcDefault = 2, kSniffer = 3 };

/** One rule of a port. */
struct FlowRule {
  FlowMatch match;
  uint64_t order = 0;  ///< creation: the smaller is the older
  FlowKind kind = FlowKind::kNormal;
  uint16_t priority = 0;  ///< the smaller is the stronger
  bool dont_trap = false;
  bool drop = false;
  bool tagged = false;
  uint32_t tag = 0;
  uint32_t qpn = 0;
  uint32_t spread = 0;  ///< 1 + index of how its QP spreads frames; 0: it takes them itself
  uint32_t record = 0;  ///< where it came from, and the word of that then; carried along
  uint64_t word = 0;
};

/**
 * The rules of one port, ready to be matched: one hash table for each mask that occurs, so that the
 * cost of a frame grows with the number of different masks and not with the number of rules. Built
 * once from a list of rules, then immutable: any number of threads may match.
 *
 * Who wins (VERBS 3): NORMAL rules before default ones; the smaller priority; every rule with the
 * identical match at that priority gets a copy; of differing ones that overlap at one priority the
 * oldest. Rules with DONT_TRAP get their copy and the frame goes on. MC_DEFAULT and the multicast
 * half of ALL_DEFAULT are the identical match. Sniffers always get a copy. Where a rule that drops
 * is among the winners nobody gets the frame (but sniffers do).
 */
class FlowIndex {
 public:
  FlowIndex() = default;
  explicit FlowIndex(std::vector<FlowRule> rules);

  bool empty() const { return rules_.empty() && defaults_.empty() && sniffers_.empty(); }
  size_t masks() const { return groups_.size(); }
  const std::vector<FlowRule>& rules() const { return rules_; }

  struct Result {
    /** Who gets a copy, strongest first; a QP at most once, and once more as a sniffer. */
    std::vector<const FlowRule*> winners;
    /** The rule that dropped the frame, if one did. */
    const FlowRule* dropped_by = nullptr;
  };
  /** Fills `result`, whose memory is used again. */
  void match(const PacketFields& fields, bool multicast, Result* result) const;

 private:
  /** All rules with one mask, by their value. */
  struct Group {
    uint64_t words[PacketFields::kWords];
    uint8_t used[PacketFields::kWords];  ///< indices of words with bits
    uint8_t used_count = 0;
    uint16_t best = 0xFFFF;  ///< priority
    /** Hash of the masked value to the first rule with it; rules_ is sorted so that those with one
     * value follow each other, strongest first. */
    std::unordered_multimap<uint64_t, uint32_t> table;
  };

  static uint64_t hash(const Group& group, const uint64_t* words);
  bool same_match(const FlowRule& a, const FlowRule& b) const;
  const FlowRule* find(const Group& group, const uint64_t* words) const;

  std::vector<FlowRule> rules_;  ///< NORMAL ones, in runs of identical matches
  std::vector<Group> groups_;
  std::vector<FlowRule> defaults_;  ///< by priority, then age
  std::vector<FlowRule> sniffers_;
};

}  // namespace millrace::soft
