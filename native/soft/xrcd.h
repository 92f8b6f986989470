#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>

#include "soft/device.h"
#include "soft/layout/objects.h"

namespace millrace::soft {

/** An opened XRC domain: the key, and the record in the fabric that makes it exist for others. */
struct Xrcd {
  ibv_xrcd xrcd = {};
  Context* context = nullptr;
  XrcdKey key;
  uint32_t record = 0;
  std::atomic<uint32_t> users{0};  ///< SRQs and QPs

  static Xrcd& of(ibv_xrcd* handle) { return *reinterpret_cast<Xrcd*>(handle); }
};

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attr);
int close_xrcd(ibv_xrcd* xrcd);

}  // namespace millrace::soft
