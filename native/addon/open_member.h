#pragma once

#include <memory>
#include <utility>

#include "addon/lending.h"
#include "addon/open_handle.h"
#include "addon/regions.h"
#include "addon/shared_buffers.h"
#include "transport/member.h"

namespace millrace::addon {

/** One open handle: the transport's member and what JavaScript sees of it. */
class OpenMember final : public OpenHandle {
 public:
  OpenMember(std::unique_ptr<transport::Member> opened, const Lending::Options& lent)
      : member(std::move(opened)), buffers(member->buffers()), lending(lent) {}

  int fd() const override { return member->fd(); }
  /** The watcher lets go of the descriptor first, then the views are cut off, then the member
   * closes. */
  void close(napi_env env) override {
    if (watcher != nullptr) watcher->close();
    buffers.detach(env);
    regions.close_all(env);  // they are registered with the member's PD
    lending.close(env);
    member->close();
  }

  void abandon() override {
    if (watcher != nullptr) watcher->abandon();
    regions.abandon();
    lending.abandon();
    member->close();
  }

  std::unique_ptr<transport::Member> member;
  SharedBuffers buffers;
  Regions regions;
  Lending lending;
  /** One more than the highest peer index that was ever given out. */
  uint32_t peers = 0;
};

}  // namespace millrace::addon
