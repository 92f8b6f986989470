#include "addon/lending.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <utility>

#include "addon/errors.h"
#include "addon/shared_buffers.h"

namespace millrace::addon {
namespace {

using transport::Leases;
using transport::Pool;

napi_value throw_no_memory(napi_env env) {
  bool pending = false;
  napi_is_exception_pending(env, &pending);
  return pending ? nullptr : throw_status(env, base::Status::error(ENOMEM, "create ArrayBuffer"));
}

/** An ArrayBuffer over `data`, or over a copy where the host wants to own it (`copied`). */
napi_status make_buffer(napi_env env, uint8_t* data, size_t bytes, bool copy_content,
                        napi_finalize finalize, void* hint, napi_value* buffer, bool* copied) {
  *copied = !external_buffers_allowed();
  if (!*copied) {
    const napi_status status =
        napi_create_external_arraybuffer(env, data, bytes, finalize, hint, buffer);
    if (status != napi_no_external_buffers_allowed) return status;
    *copied = true;
  }
  void* own = nullptr;
  const napi_status status = napi_create_arraybuffer(env, bytes, &own, buffer);
  if (status == napi_ok && copy_content) memcpy(own, data, bytes);
  return status;
}

/** @return whether it still had its memory */
bool detach(napi_env env, napi_value buffer) {
  bool detached = false;
  if (napi_is_detached_arraybuffer(env, buffer, &detached) != napi_ok || detached) return false;
  return napi_detach_arraybuffer(env, buffer) == napi_ok;
}

}  // namespace

/**
 * Memory of a loan or lease, which its user gives back, not the garbage collector: V8 would collect
 * everything for each 64 MiB of them, at tens of milliseconds. So what V8 is about to count is
 * taken off before, and added again when it has stopped counting. (What ordinary subscribers keep
 * is counted: there collecting is what gives it back.)
 */
struct Uncounted {
  using Memories = std::unordered_map<const void*, Uncounted*>;

  /** Before the ArrayBuffer is made. */
  void take_off(napi_env env, Memories& memories, const void* at, uint64_t size) {
    int64_t total = 0;
    if (napi_adjust_external_memory(env, -static_cast<int64_t>(size), &total) != napi_ok) return;
    data = at;
    bytes = static_cast<int64_t>(size);
    memories[at] = this;
  }
  /** After V8 has let go of it. Harmless when it was done before. */
  void add(napi_env env, Memories& memories) {
    if (bytes == 0) return;
    int64_t total = 0;
    (void)napi_adjust_external_memory(env, std::exchange(bytes, 0), &total);
    const auto found = memories.find(data);
    if (found != memories.end() && found->second == this) memories.erase(found);
  }
  static void detached(napi_env env, Memories& memories, const void* at) {
    const auto found = memories.find(at);
    if (found != memories.end()) found->second->add(env, memories);
  }

  const void* data = nullptr;
  int64_t bytes = 0;
};

/** Keeps a lent block's memory, and the block from being lent again. */
struct Lending::LoanMemory {
  std::shared_ptr<State> state;
  std::shared_ptr<void> memory;
  uint32_t block;
  uint64_t pin;
  Uncounted counted{};

  static void finalize(napi_env env, void*, void* hint) {
    const std::unique_ptr<LoanMemory> self(static_cast<LoanMemory*>(hint));
    self->counted.add(env, self->state->uncounted);
    if (self->state->pool != nullptr) self->state->pool->unpin(self->block, self->pin);
  }
};

/** Keeps a held block's memory. */
struct Lending::HoldMemory {
  std::shared_ptr<State> state;
  std::shared_ptr<Leases::View> view;
  uint32_t hold;
  Leases::Use use;
  Uncounted counted{};

  static void finalize(napi_env env, void*, void* hint) {
    const std::unique_ptr<HoldMemory> self(static_cast<HoldMemory*>(hint));
    State& state = *self->state;
    self->counted.add(env, state.uncounted);
    if (state.leases == nullptr || !state.leases->refers(self->hold, self->use)) return;
    const Leases::Released released = state.leases->release(self->hold, self->use);
    napi_handle_scope scope;
    if (state.collected == nullptr || napi_open_handle_scope(env, &scope) != napi_ok) return;
    napi_value callback = nullptr;
    napi_value receiver = nullptr;
    napi_value result = nullptr;
    napi_value arguments[5];
    napi_create_uint32(env, self->hold, &arguments[0]);
    napi_create_uint32(env, static_cast<uint32_t>(self->use), &arguments[1]);
    napi_get_boolean(env, released.last, &arguments[2]);
    napi_get_boolean(env, released.wanted, &arguments[3]);
    napi_create_uint32(env, released.strays, &arguments[4]);
    // An environment that ends runs no more JavaScript; then nobody wants to know.
    if (napi_get_reference_value(env, state.collected, &callback) == napi_ok &&
        napi_get_undefined(env, &receiver) == napi_ok) {
      (void)napi_call_function(env, receiver, callback, 5, arguments, &result);
    }
    napi_close_handle_scope(env, scope);
  }
};

base::Result<int> Lending::State::folder_descriptor() {
  if (!folder.valid()) {
    folder = base::Fd(open(options.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  if (folder.valid()) return folder.get();
  const int error = errno;
  return base::Status::error(error, "open the domain's folder",
                             options.folder + ": " + strerror(error));
}

base::Result<Pool*> Lending::pool() {
  State& state = *state_;
  if (state.pool == nullptr) {
    auto folder = state.folder_descriptor();
    if (!folder.ok()) return folder.status();
    const Options& options = state.options;
    auto made = Pool::create(folder.value(), {options.incarnation, options.pool_bytes,
                                              options.held_bytes, options.poison, options.pd});
    if (!made.ok()) return made.status();
    state.pool = made.take();
  }
  return state.pool.get();
}

base::Result<Leases*> Lending::leases() {
  State& state = *state_;
  if (state.leases == nullptr) {
    auto folder = state.folder_descriptor();
    if (!folder.ok()) return folder.status();
    base::Fd own(fcntl(folder.value(), F_DUPFD_CLOEXEC, 0));
    if (!own.valid()) {
      return base::Status::error(errno, "duplicate the folder's descriptor", strerror(errno));
    }
    state.leases = std::make_unique<Leases>(std::move(own), state.options.incarnation);
  }
  return state.leases.get();
}

void Lending::close(napi_env env) {
  if (state_->collected != nullptr) napi_delete_reference(env, state_->collected);
  state_->collected = nullptr;
  if (state_->leases != nullptr) state_->leases->close();
  if (state_->pool != nullptr) state_->pool->close();
}

void Lending::abandon() {
  if (state_->leases != nullptr) state_->leases->close(false);
  if (state_->pool != nullptr) state_->pool->close();
}

napi_value Lending::loan_buffer(napi_env env, uint32_t block, uint64_t bytes) {
  Pool& pool = *state_->pool;
  auto* hint = new LoanMemory{state_, pool.memory(block), block, pool.pin(block)};
  napi_value buffer = nullptr;
  bool copied = false;
  hint->counted.take_off(env, state_->uncounted, pool.address(block), bytes);
  const napi_status status = make_buffer(env, pool.address(block), bytes, false,
                                         LoanMemory::finalize, hint, &buffer, &copied);
  if (copied || status != napi_ok) LoanMemory::finalize(env, nullptr, hint);
  return status == napi_ok ? buffer : throw_no_memory(env);
}

bool Lending::end_loan(napi_env env, uint32_t block, napi_value buffer) {
  Pool& pool = *state_->pool;
  void* data = nullptr;
  size_t bytes = 0;
  if (napi_get_arraybuffer_info(env, buffer, &data, &bytes) != napi_ok) return false;
  if (data != nullptr && data != pool.address(block)) {
    const uint64_t copied = std::min<uint64_t>(bytes, pool.capacity(block));
    memcpy(pool.address(block), data, copied);
    state_->copies.add(copied);
  }
  if (!detach(env, buffer)) return false;
  Uncounted::detached(env, state_->uncounted, pool.address(block));
  pool.unpin(block);
  return true;
}

napi_value Lending::hold_buffer(napi_env env, uint32_t hold, Leases::Use use) {
  auto memory = state_->leases->refer(hold, use);
  if (!memory.ok()) return throw_status(env, memory.status());
  const Leases::Memory& found = memory.value();
  auto* hint = new HoldMemory{state_, found.view, hold, use};
  napi_value buffer = nullptr;
  bool copied = false;
  if (use == Leases::Use::kLeased) {
    hint->counted.take_off(env, state_->uncounted, found.data, found.bytes);
  }
  const napi_status status =
      make_buffer(env, found.data, found.bytes, true, HoldMemory::finalize, hint, &buffer, &copied);
  if (!copied && status == napi_ok) return buffer;
  if (status == napi_ok) state_->copies.add(found.bytes);
  hint->counted.add(env, state_->uncounted);
  delete hint;
  (void)state_->leases->release(hold, use);
  return status == napi_ok ? buffer : throw_no_memory(env);
}

Leases::Released Lending::end_hold(napi_env env, uint32_t hold, Leases::Use use,
                                   napi_value buffer) {
  // Detached by somebody else: its memory lives on in another buffer, and the finalizer gives back.
  void* data = nullptr;
  size_t bytes = 0;
  (void)napi_get_arraybuffer_info(env, buffer, &data, &bytes);
  if (!detach(env, buffer)) return {};
  Uncounted::detached(env, state_->uncounted, data);
  return state_->leases->release(hold, use);
}

void Lending::on_collected(napi_env env, napi_value callback) {
  if (state_->collected != nullptr) napi_delete_reference(env, state_->collected);
  napi_create_reference(env, callback, 1, &state_->collected);
}

}  // namespace millrace::addon
