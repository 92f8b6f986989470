#pragma once

#include <node_api.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace millrace::addon {

/** Keeps memory that JavaScript was given until V8 has let go of it; destroyed then, on any thread.
 */
struct Keeper {
  std::shared_ptr<void> owner;   ///< whom let_go() tells
  std::shared_ptr<void> memory;  ///< what is kept mapped
  uint64_t number = 0;           ///< what the memory is to its owner
  uint64_t detail = 0;
  /** V8 has let go of the memory, and not because detach() was called. On the environment's thread,
   * while it lasts. */
  void (*let_go)(napi_env env, const Keeper& self) = nullptr;
};

/**
 * One environment's ArrayBuffers over memory that its user gives back, not the garbage collector.
 *
 * V8 would count them as external memory, and collect everything whenever 64 MiB were added: for
 * each message of that size, at tens of milliseconds. Taking it off the count by
 * napi_adjust_external_memory() does not help, since V8 compares with the lowest point since the
 * last collection. Memory whose deleter is V8's own empty one is not counted, and its owner is
 * asked by the last reference to it: ours here.
 *
 * Where V8 is not as it is known (v8_api.h) these are Node-API's external ArrayBuffers, which are
 * the same but for the collections and some 2 us each.
 */
class LentBuffers {
 public:
  /** Nothing is made before the first make(). */
  LentBuffers() = default;
  LentBuffers(const LentBuffers&) = delete;
  LentBuffers& operator=(const LentBuffers&) = delete;

  /**
   * An ArrayBuffer over `data`, which `keeper` keeps there.
   * @return napi_ok; or why not, also napi_no_external_buffers_allowed, and nothing is kept
   */
  napi_status make(napi_env env, void* data, size_t bytes, Keeper keeper, napi_value* buffer);
  /** The same, and Node-API makes it: V8 counts it as memory that collecting gives back. */
  static napi_status make_counted(napi_env env, void* data, size_t bytes, Keeper keeper,
                                  napi_value* buffer);
  /** Makes a buffer empty, and its keeper ends. @return whether it still had its memory */
  bool detach(napi_env env, napi_value buffer) const;
  /** Makes any buffer empty; a keeper is told as if V8 had let go. @return whether it had memory */
  static bool empty(napi_env env, napi_value buffer);

 private:
  struct Home;
  struct Delete;

  bool try_v8(napi_env env);

  std::shared_ptr<Home> home_;  ///< null: Node-API's
  bool tried_ = false;
};

}  // namespace millrace::addon
