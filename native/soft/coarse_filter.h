#pragma once

#include <linux/filter.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "soft/packet.h"

namespace millrace::soft {

/** Disjoint ranges of 32-bit numbers that do not touch each other. */
class RangeSet {
 public:
  /** Adds lo to hi, both included. False: all of it was there. */
  bool add(uint32_t lo, uint32_t hi);
  /** Closes the smallest gaps, so that at most `count` ranges are left. */
  void coarsen(size_t count);
  const std::map<uint32_t, uint32_t>& ranges() const { return ranges_; }

 private:
  std::map<uint32_t, uint32_t> ranges_;  ///< first to last
};

/**
 * What a network interface's packet socket lets through: never less than the rules match, often
 * more (exact matching is the flow table's). A rule counts with its destination address (IPv6: the
 * last four bytes of it) and destination port; many different ones are taken together, so that the
 * program keeps within what the kernel takes. Fragments pass by their address alone, and what is
 * too short for its headers passes: both are counted, not lost in silence. Plain data; any thread.
 */
class CoarseFilter {
 public:
  /** Also lets through what this rule may match. False: it did so already. */
  bool add(const FlowMatch& match);
  /** Lets everything through: rules of other kinds. */
  bool add_all();
  /** Also frames that leave the interface (sniffers). */
  bool add_outgoing() { return !std::exchange(outgoing_, true); }

  /** For SO_ATTACH_FILTER on a packet socket with SOCK_RAW; at most BPF_MAXINSNS instructions. */
  std::vector<sock_filter> program() const;

 private:
  /** A field's values. */
  struct Values {
    RangeSet set;
    bool all = false;
    bool add(uint32_t value, uint32_t mask);
  };

  bool everything_ = false;
  bool outgoing_ = false;
  bool ipv4_ = false, ipv6_ = false;
  Values dst4_, dst6_, ports_;
};

}  // namespace millrace::soft
