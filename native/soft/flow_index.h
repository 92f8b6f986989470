#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "soft/packet.h"

namespace millrace::soft {

enum class FlowKind : uint8_t { kNormal = 0, kAllDefault = 1, kMcDefault = 2, kSniffer = 3 };

/** What a rule does, and how it stands among others: all that is looked at of a rule that a frame
 * matches, and no more, so that many are in the caches. */
struct alignas(32) FlowEntry {
  uint64_t word = 0;  ///< of its record when it was read; carried along, as `record` is
  uint32_t record = 0;
  uint32_t tag = 0;
  uint32_t qpn = 0;
  uint32_t place = 0;     ///< among the rules of an index, which sets it: the strongest is 0
  uint16_t priority = 0;  ///< the smaller is the stronger
  uint16_t spread = 0;    ///< 1 + index of how its QP spreads frames; 0: it takes them itself
  FlowKind kind = FlowKind::kNormal;
  bool dont_trap = false;
  bool drop = false;
  bool tagged = false;
};
static_assert(sizeof(FlowEntry) == 32);

/** One rule of a port. */
struct FlowRule : FlowEntry {
  FlowMatch match;
  uint64_t order = 0;  ///< creation: the smaller is the older
};

/**
 * The rules of one port, ready to be matched: one hash table for each mask that occurs, so that the
 * cost of a frame grows with the number of different masks and not with the number of rules: one
 * line of memory to find a rule, and one that says what it does. Built once from a list of rules,
 * then immutable: any number of threads may match.
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

  bool empty() const { return entries_.empty() && defaults_.empty() && sniffers_.empty(); }
  size_t masks() const { return groups_.size(); }

  /** Rules with one match that a frame has, strongest first; those before `at` had their turn. */
  struct Run {
    const FlowEntry* at = nullptr;
    const FlowEntry* end = nullptr;
  };
  struct Result {
    /** Who gets a copy, strongest first; a QP at most once, and once more as a sniffer. */
    std::vector<const FlowEntry*> winners;
    /** The rule that dropped the frame, if one did. */
    const FlowEntry* dropped_by = nullptr;

    // While matching.
    std::vector<Run> runs;
    std::vector<const FlowEntry*> equals;
  };
  /** Fills `result`, whose memory is used again. */
  void match(const PacketFields& fields, bool multicast, Result* result) const;

 private:
  struct alignas(64) Line {
    uint64_t words[8];
  };
  /**
   * All rules with one mask, by their value: open addressing over slots of a power of two of words,
   * at most half of them in use. A slot says which run it is (0: a free one) and has the masked
   * words that tell its value from the group's others; with up to seven of those it is within one
   * line of memory.
   */
  struct Group {
    uint64_t mask[PacketFields::kWords];
    uint64_t value[PacketFields::kWords];  ///< where all rules have the same
    uint8_t shared[PacketFields::kWords];  ///< indices of the words that are one for all rules
    uint8_t own[PacketFields::kWords];     ///< and of those that differ
    uint8_t shared_count = 0, own_count = 0;
    uint16_t best = 0xFFFF;  ///< priority
    uint32_t slot_words = 0;
    uint64_t slot_mask = 0;
    std::vector<Line> lines;

    uint64_t* slot(uint64_t number) {
      return reinterpret_cast<uint64_t*>(lines.data()) + (number & slot_mask) * slot_words;
    }
    const uint64_t* slot(uint64_t number) const { return const_cast<Group*>(this)->slot(number); }
  };

  /** Rules with one mask, in runs. */
  void add_group(std::span<const FlowRule* const> rules);
  Run find(const Group& group, const uint64_t* words) const;

  std::vector<FlowEntry> entries_;  ///< of NORMAL ones, in runs of identical matches
  std::vector<Group> groups_;
  std::vector<FlowRule> defaults_;  ///< by priority, then age
  std::vector<FlowRule> sniffers_;
};

}  // namespace millrace::soft
