#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "transport/member.h"

namespace millrace::transport {

/** Bytes of one READ. */
inline constexpr uint64_t kFetchPiece = 1 << 20;
/** Bytes of all READs of a member that are in flight, at most. */
inline constexpr uint64_t kFetchWindow = 4 << 20;
/** A fetch tells how far it is after so many bytes more. */
inline constexpr uint64_t kFetchProgress = 64 << 20;

/** A payload that is being read out of a peer's memory: posted in pieces, in order. */
struct Fetch {
  uint32_t number = 0;
  uint32_t peer = 0;
  uint32_t generation = 0;  ///< of the peer's index
  RemoteMemory from;
  std::byte* to = nullptr;
  uint32_t lkey = 0;
  uint64_t next = 0;       ///< the next piece begins here
  uint64_t done = 0;       ///< everything before is here
  uint64_t in_flight = 0;  ///< of its bytes; the device may write to `to` as long as it is not 0
  uint64_t told = 0;       ///< `done` of the last row
  uint32_t failures = 0;   ///< error completions since the last piece that came
  FetchEnd end = FetchEnd::kNone;
  ibv_wc_status status = IBV_WC_SUCCESS;
};

}  // namespace millrace::transport
