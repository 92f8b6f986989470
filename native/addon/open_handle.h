#pragma once

#include <node_api.h>

#include <memory>

#include "addon/watcher.h"

namespace millrace::addon {

/** What a handle of an environment stands for: a member, or a port that frames are steered from. */
class OpenHandle {
 public:
  virtual ~OpenHandle() = default;
  OpenHandle() = default;
  OpenHandle(const OpenHandle&) = delete;

  /** What the watcher watches. */
  virtual int fd() const = 0;
  /** The watcher lets go of the descriptor, then all is closed. */
  virtual void close(napi_env env) = 0;
  /** For the process's exit: closes without a call into Node-API. Only leaking it may follow. */
  virtual void abandon() = 0;

  std::unique_ptr<Watcher> watcher;
};

}  // namespace millrace::addon
