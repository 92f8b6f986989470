#pragma once

#include <node_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "addon/lent_buffers.h"
#include "transport/landing.h"
#include "transport/leases.h"
#include "transport/pool.h"

namespace millrace::addon {

/**
 * A member's pool and leases as ArrayBuffers over their memory.
 *
 * Who owns the memory: each ArrayBuffer holds a reference to the mapping until V8 has let go of it,
 * however it got there (collected, detached, transferred). A block or hold counts as in use until
 * its ArrayBuffer was detached by us, or V8 has let go: so no block is used again under JavaScript
 * (I5), also where a program has moved the memory to another ArrayBuffer.
 *
 * Where the host refuses external buffers, or with MILLRACE_EXTERNAL_BUFFERS=0, JavaScript owns the
 * memory: a loan is copied when it ends, a received block when it is taken.
 */
class Lending {
 public:
  struct Options {
    std::string folder;
    uint64_t incarnation = 0;
    uint64_t pool_bytes = 0;
    uint64_t held_bytes = 0;
    bool poison = false;
    ibv_pd* pd = nullptr;  ///< of the member, which closes after this
  };

  explicit Lending(const Options& options) : state_(std::make_shared<State>(options)) {}

  /** Everything is given back; ArrayBuffers that are left keep their content. */
  void close(napi_env env);
  /** The same for the process's exit, without a call into Node-API. */
  void abandon();

  /** The pool, made at the first call. */
  base::Result<transport::Pool*> pool();
  /** Null before the first loan. */
  transport::Pool* open_pool() const { return state_->pool.get(); }
  /** The holds on others' blocks, made at the first call. */
  base::Result<transport::Leases*> leases();
  transport::Leases* open_leases() const { return state_->leases.get(); }
  const Options& options() const { return state_->options; }
  /** Whether JavaScript is given memory of ours, not copies. */
  bool external_buffers() const { return state_->external_buffers; }
  /** Payloads that were copied because the host wants to own their memory, ever. */
  struct Copies {
    uint64_t count = 0, bytes = 0;
    void add(uint64_t copied) {
      ++count;
      bytes += copied;
    }
  };
  const Copies& copies() const { return state_->copies; }

  /** An ArrayBuffer over a lent block. Null with an exception. */
  napi_value loan_buffer(napi_env env, uint32_t block, uint64_t bytes);
  /** The loan's ArrayBuffer is empty from here on. @return false when somebody else had detached
   * it: then its memory may still be written to */
  bool end_loan(napi_env env, uint32_t block, napi_value buffer);
  /** An ArrayBuffer over a held block. Null with an exception. */
  napi_value hold_buffer(napi_env env, uint32_t hold, transport::Leases::Use use);
  /** Makes the ArrayBuffer empty and gives the reference back, now or when V8 lets go of memory
   * that somebody else has moved. */
  transport::Leases::Released end_hold(napi_env env, uint32_t hold, transport::Leases::Use use,
                                       napi_value buffer);
  /** Called with (hold, use, last, wanted, strays) when a buffer was collected without end_hold().
   */
  void on_collected(napi_env env, napi_value callback);
  /** Called with the block when a loan's buffer was collected without end_loan(). */
  void on_loan_collected(napi_env env, napi_value callback);

 private:
  struct State {
    explicit State(const Options& given);
    base::Result<int> folder_descriptor();
    static void loan_let_go(napi_env env, const Keeper& self);
    static void hold_let_go(napi_env env, const Keeper& self);
    Options options;
    const bool external_buffers;
    base::Fd folder;
    std::unique_ptr<transport::Pool> pool;
    std::unique_ptr<transport::Leases> leases;
    napi_ref collected = nullptr;
    napi_ref forgotten = nullptr;
    Copies copies;
    LentBuffers lent;
  };
  std::shared_ptr<State> state_;
};

}  // namespace millrace::addon
