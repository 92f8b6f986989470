#pragma once

#include <node_api.h>
#include <pthread.h>

#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "addon/open_member.h"
#include "addon/open_port.h"

namespace millrace::addon {

/**
 * What one environment (the main thread or a worker) holds: its members, ports and presence locks.
 * One per load of the addon in an environment, reached through the functions' data pointer; nothing
 * of it is shared with other environments, and only its own thread uses it (I6).
 *
 * How it ends:
 * - Node-API's asynchronous clean-up hook (a worker that exits or is terminated, the normal end of
 * the main thread): watchers are stopped first, then members close, and the hook is over when libuv
 * has given back the watchers' handles.
 * - process.exit() and an uncaught exception skip the hooks of the main thread: an exit handler
 * closes the members without a call into Node-API.
 */
class Environment {
 public:
  /** Makes the environment's instance data and registers its end. Null, with an exception, on
   * failure. */
  static Environment* create(napi_env env);

  napi_env env() const { return env_; }
  /** False in hosts that imitate Node.js: their libuv functions may be stubs that abort. */
  bool host_is_node() const { return host_is_node_; }

  /** What is behind a handle; null when it was closed, never was, or is of another kind. */
  template <class Kind>
  Kind* find(int32_t handle) const {
    const auto index = static_cast<uint32_t>(handle) & kIndexMask;
    if (index >= slots_.size()) return nullptr;
    const Slot& slot = slots_[index];
    if (slot.handle != handle) return nullptr;
    if constexpr (std::is_same_v<Kind, OpenMember>) {
      return slot.is_member ? static_cast<OpenMember*>(slot.open.get()) : nullptr;
    } else if constexpr (std::is_same_v<Kind, OpenPort>) {
      return slot.is_member ? nullptr : static_cast<OpenPort*>(slot.open.get());
    } else {
      return slot.open.get();
    }
  }
  /** Takes it over. @return its handle, or 0 when there are too many (4095 open at a time). */
  int32_t add(std::unique_ptr<OpenMember> member) { return add(std::move(member), true); }
  int32_t add(std::unique_ptr<OpenPort> port) { return add(std::move(port), false); }
  /** Takes it out, so that every later call with the handle says ECLOSED; null if it is out. */
  std::unique_ptr<OpenHandle> remove(int32_t handle);

  /** Takes over a locked presence file. @return its token. */
  int32_t add_presence(int fd);
  void remove_presence(int32_t token);

  /** A watcher's libuv handle is closing; the environment ends after it has. */
  void closing_started() { ++closing_; }
  void closing_finished();

 private:
  explicit Environment(napi_env env) : env_(env), thread_(pthread_self()) {}
  ~Environment();

  static void on_cleanup(napi_async_cleanup_hook_handle hook, void* data);
  static void on_exit();
  void finish_cleanup();

  // A handle is an index and the slot's generation, so that a closed one is not taken for its
  // successor.
  static constexpr uint32_t kIndexBits = 12;
  static constexpr uint32_t kIndexMask = (1u << kIndexBits) - 1;
  static constexpr uint32_t kGenerations = 1u << (31 - kIndexBits);
  struct Slot {
    int32_t handle = 0;
    uint32_t generation = 0;
    bool is_member = false;
    std::unique_ptr<OpenHandle> open;
  };
  int32_t add(std::unique_ptr<OpenHandle> open, bool is_member);

  napi_env env_;
  pthread_t thread_;
  bool host_is_node_ = true;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::map<int32_t, int> presence_;
  int32_t next_token_ = 1;
  int closing_ = 0;
  napi_async_cleanup_hook_handle hook_ = nullptr;
  bool ending_ = false;
};

}  // namespace millrace::addon
