#pragma once

#include <node_api.h>

#include <memory>

#include "base/status.h"

namespace millrace::addon {

class Environment;

/**
 * Calls a JavaScript function while a descriptor is readable, on the environment's own thread (I6).
 * Level-triggered like uv_poll. Starts stopped and unreferenced. Two kinds:
 * - libuv's own poll handle, where the host has libuv: 27 us for a round trip between processes;
 * - a helper thread with a thread-safe function elsewhere (62 us), also chosen by
 * MILLRACE_WATCHER=thread. Every function is for the environment's thread.
 */
class Watcher {
 public:
  virtual ~Watcher() = default;
  Watcher() = default;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /** Starts or stops. Errors: what epoll says of the descriptor. */
  virtual base::Status watch(bool on) = 0;
  /** Whether the watcher, while started, keeps the event loop alive. */
  virtual void ref(bool on) = 0;
  /**
   * Stops for good. When it returns the descriptor is no longer watched (it may be closed) and the
   * function will not be called again. Idempotent. May be called from within the function.
   */
  virtual void close() = 0;
  /** Joins what runs, without a call into Node-API or libuv: for the process's exit. */
  virtual void abandon() = 0;
};

/** The callback and what is needed to call it; shared by both kinds. */
class Listener {
 public:
  Listener(napi_env env, napi_value callback);
  /** Calls it in a callback scope of its own; what it throws becomes an uncaught exception. */
  void call();
  /** It will not be called again. */
  void reset() { target_.reset(); }

 private:
  struct Target {
    ~Target();
    napi_env env = nullptr;
    napi_ref function = nullptr;
    napi_async_context context = nullptr;
  };
  std::shared_ptr<Target> target_;
};

/** Makes the kind that the host can have. `callback` must be a function. */
base::Result<std::unique_ptr<Watcher>> make_watcher(Environment& environment, int fd,
                                                    napi_value callback);

/** The kinds, one file each. */
base::Result<std::unique_ptr<Watcher>> make_uv_watcher(Environment& environment, int fd,
                                                       napi_value callback);
base::Result<std::unique_ptr<Watcher>> make_thread_watcher(Environment& environment, int fd,
                                                           napi_value callback);

}  // namespace millrace::addon
