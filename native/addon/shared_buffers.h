#pragma once

#include <node_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/member.h"

namespace millrace::addon {

/** Whether JavaScript may be given memory of ours: not with MILLRACE_EXTERNAL_BUFFERS=0. */
bool external_buffers_allowed();

/**
 * A member's tables and arena as ArrayBuffers.
 *
 * Who owns the memory: each ArrayBuffer holds a reference to the member's memory until V8 has let
 * go of it, however it got there (collected, detached, transferred). So the memory outlives the
 * member as long as anything in JavaScript can reach it (I5), and detach() is what makes close()
 * visible.
 *
 * One ArrayBuffer per region and only one: V8 aborts the process when one pointer is wrapped twice.
 * Where the host refuses external buffers (Electron), or with MILLRACE_EXTERNAL_BUFFERS=0,
 * JavaScript owns the memory, and push() and pull() copy around each call.
 */
class SharedBuffers {
 public:
  explicit SharedBuffers(const transport::Buffers& native) : native_(native) {}
  SharedBuffers(const SharedBuffers&) = delete;
  SharedBuffers& operator=(const SharedBuffers&) = delete;

  /** `{ arena, sends, events, counters, peers }`, made at the first call. Null with an exception.
   */
  napi_value get(napi_env env);
  /** Makes every view of it empty. Without effect when there is none. */
  void detach(napi_env env);

  /** Whether push() and pull() are needed. */
  bool copied() const { return copied_; }
  /** The arena as JavaScript writes to it; empty if somebody detached it. */
  std::span<uint8_t> arena(napi_env env) const {
    return copied_ ? copy(env, kArena) : native(kArena);
  }
  /**
   * Before flush: rows, the release position, and the arena's bytes that the rows name. Rows that
   * reach beyond the arena are left for flush to refuse.
   */
  void push(napi_env env, uint32_t rows);
  /** After flush (events = 0) or poll: rows of events, counters, and the peers' rows below `peers`.
   */
  void pull(napi_env env, uint32_t events, uint32_t peers);

 private:
  enum Region { kArena, kSends, kEvents, kCountersRegion, kPeers, kRegions };

  std::span<uint8_t> native(Region region) const;
  /** JavaScript's copy; empty if somebody detached it. */
  std::span<uint8_t> copy(napi_env env, Region region) const;
  napi_status wrap(napi_env env, Region region, napi_value* buffer);

  transport::Buffers native_;
  std::array<napi_ref, kRegions> references_{};
  napi_ref object_ = nullptr;
  bool copied_ = false;
};

}  // namespace millrace::addon
