#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "addon/open_handle.h"
#include "transport/steering.h"

namespace millrace::addon {

/** A port that frames are steered from, and what JavaScript sees of it. */
class OpenPort final : public OpenHandle {
 public:
  explicit OpenPort(std::unique_ptr<transport::Steering> opened) : steering(std::move(opened)) {}

  int fd() const override { return steering->fd(); }
  void close(napi_env) override {
    if (watcher != nullptr) watcher->close();
    steering->close();
  }
  void abandon() override {
    if (watcher != nullptr) watcher->abandon();
    steering->close();
  }

  std::unique_ptr<transport::Steering> steering;
  /** UDP datagrams that were dropped: checksums that are wrong, lengths beyond the frame. */
  uint64_t malformed = 0;
};

}  // namespace millrace::addon
