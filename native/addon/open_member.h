#pragma once

#include <memory>
#include <utility>

#include "addon/lending.h"
#include "addon/regions.h"
#include "addon/shared_buffers.h"
#include "addon/watcher.h"
#include "transport/member.h"

namespace millrace::addon {

/** One open handle: the transport's member and what JavaScript sees of it. */
class OpenMember {
 public:
  OpenMember(std::unique_ptr<transport::Member> opened, const Lending::Options& lent)
      : member(std::move(opened)), buffers(member->buffers()), lending(lent) {}

  /** The watcher lets go of the descriptor first, then the views are cut off, then the member
   * closes. */
  void close(napi_env env) {
    if (watcher != nullptr) watcher->close();
    buffers.detach(env);
    regions.close_all(env);  // they are registered with the member's PD
    lending.close(env);
    member->close();
  }

  /** For the process's exit: closes without a call into Node-API. Only leaking it may follow. */
  void abandon() {
    if (watcher != nullptr) watcher->abandon();
    regions.abandon();
    lending.abandon();
    member->close();
  }

  std::unique_ptr<transport::Member> member;
  SharedBuffers buffers;
  Regions regions;
  Lending lending;
  std::unique_ptr<Watcher> watcher;
  /** One more than the highest peer index that was ever given out. */
  uint32_t peers = 0;
};

}  // namespace millrace::addon
