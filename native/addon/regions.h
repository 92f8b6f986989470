#pragma once

#include <node_api.h>

#include <cstdint>
#include <map>
#include <memory>

#include "transport/shared_region.h"

namespace millrace::addon {

/**
 * The shared regions that one member has open, and their ArrayBuffers.
 *
 * An ArrayBuffer holds the mapping until V8 has let go of it, however it got there (collected,
 * detached, transferred), so nothing is unmapped under JavaScript (I5). Closing a region detaches
 * its ArrayBuffer: the views read as empty. JavaScript knows no read-only ArrayBuffer, so what is
 * written to a region that was opened for reading is caught (transport/stray.h).
 */
class Regions {
 public:
  Regions() = default;
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;

  /** @return a number that is not used again by this member */
  int32_t add(std::unique_ptr<transport::SharedRegion> region);
  /** Null when it was closed, or never was. */
  transport::SharedRegion* find(int32_t number) const;
  /** The ArrayBuffer over the region's bytes, the same at each call. Null with an exception. */
  napi_value buffer(napi_env env, int32_t number);
  /** Idempotent. @return pages that were written to though the region was opened for reading */
  uint32_t close(napi_env env, int32_t number);
  void close_all(napi_env env);
  /** For the process's exit: holds end, without a call into Node-API. */
  void abandon() { open_.clear(); }
  uint32_t count() const { return static_cast<uint32_t>(open_.size()); }

 private:
  struct Open {
    std::unique_ptr<transport::SharedRegion> region;
    napi_ref buffer = nullptr;
  };
  static uint32_t detach(napi_env env, Open& open);

  std::map<int32_t, Open> open_;
  int32_t last_ = 0;
};

}  // namespace millrace::addon
