#include "addon/lending.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <array>
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

/** An ArrayBuffer of JavaScript's own, over a copy where there is something to copy. */
napi_status make_own(napi_env env, const uint8_t* data, size_t bytes, bool copy_content,
                     napi_value* buffer) {
  void* own = nullptr;
  const napi_status status = napi_create_arraybuffer(env, bytes, &own, buffer);
  if (status == napi_ok && copy_content) memcpy(own, data, bytes);
  return status;
}

/** Calls back with what `make` makes, from where V8 has let go of memory. */
template <class Make>
void call_back(napi_env env, napi_ref reference, Make make) {
  napi_handle_scope scope;
  if (reference == nullptr || napi_open_handle_scope(env, &scope) != napi_ok) return;
  napi_value callback = nullptr;
  napi_value receiver = nullptr;
  napi_value result = nullptr;
  const auto arguments = make();
  // An environment that ends runs no more JavaScript; then nobody wants to know.
  if (napi_get_reference_value(env, reference, &callback) == napi_ok &&
      napi_get_undefined(env, &receiver) == napi_ok) {
    (void)napi_call_function(env, receiver, callback, arguments.size(), arguments.data(), &result);
  }
  napi_close_handle_scope(env, scope);
}

/** Calls `callback` instead of what `reference` refers to. */
void refer(napi_env env, napi_value callback, napi_ref& reference) {
  if (reference != nullptr) napi_delete_reference(env, reference);
  napi_create_reference(env, callback, 1, &reference);
}

}  // namespace

/** The loan was forgotten, or somebody else had moved its memory: now nobody can reach it. */
void Lending::State::loan_let_go(napi_env env, const Keeper& self) {
  const State& state = *static_cast<State*>(self.owner.get());
  const auto block = static_cast<uint32_t>(self.number);
  if (state.pool == nullptr || !state.pool->pinned(block, self.detail)) return;
  state.pool->unpin(block, self.detail);
  if (!state.pool->lent(block)) return;
  call_back(env, state.forgotten, [&] {
    std::array<napi_value, 1> arguments{};
    napi_create_uint32(env, block, &arguments[0]);
    return arguments;
  });
}

void Lending::State::hold_let_go(napi_env env, const Keeper& self) {
  const State& state = *static_cast<State*>(self.owner.get());
  const auto hold = static_cast<uint32_t>(self.number);
  const auto use = static_cast<Leases::Use>(self.detail);
  if (state.leases == nullptr || !state.leases->refers(hold, use)) return;
  const Leases::Released released = state.leases->release(hold, use);
  call_back(env, state.collected, [&] {
    std::array<napi_value, 5> arguments{};
    napi_create_uint32(env, hold, &arguments[0]);
    napi_create_uint32(env, static_cast<uint32_t>(use), &arguments[1]);
    napi_get_boolean(env, released.last, &arguments[2]);
    napi_get_boolean(env, released.wanted, &arguments[3]);
    napi_create_uint32(env, released.strays, &arguments[4]);
    return arguments;
  });
}

Lending::State::State(const Options& given)
    : options(given), external_buffers(external_buffers_allowed()) {}

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
  for (napi_ref* const reference : {&state_->collected, &state_->forgotten}) {
    if (*reference != nullptr) napi_delete_reference(env, std::exchange(*reference, nullptr));
  }
  if (state_->leases != nullptr) state_->leases->close();
  if (state_->pool != nullptr) state_->pool->close();
}

void Lending::abandon() {
  if (state_->leases != nullptr) state_->leases->close(false);
  if (state_->pool != nullptr) state_->pool->close();
}

napi_value Lending::loan_buffer(napi_env env, uint32_t block, uint64_t bytes) {
  Pool& pool = *state_->pool;
  napi_value buffer = nullptr;
  napi_status status = napi_no_external_buffers_allowed;
  if (state_->external_buffers) {
    status = state_->lent.make(
        env, pool.address(block), bytes,
        {state_, pool.memory(block), block, pool.pin(block), State::loan_let_go}, &buffer);
    if (status != napi_ok) pool.unpin(block);
  }
  if (status == napi_no_external_buffers_allowed) {
    status = make_own(env, pool.address(block), bytes, false, &buffer);
  }
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
  if (!state_->lent.detach(env, buffer)) return false;
  pool.unpin(block);
  return true;
}

napi_value Lending::hold_buffer(napi_env env, uint32_t hold, Leases::Use use) {
  auto referred = state_->leases->refer(hold, use);
  if (!referred.ok()) return throw_status(env, referred.status());
  const Leases::Memory found = referred.take();
  napi_value buffer = nullptr;
  napi_status status = napi_no_external_buffers_allowed;
  if (state_->external_buffers) {
    Keeper keeper = {state_, found.view, hold, static_cast<uint64_t>(use), State::hold_let_go};
    // What is kept is counted by V8: there collecting is what gives it back.
    status =
        use == Leases::Use::kLeased
            ? state_->lent.make(env, found.data, found.bytes, std::move(keeper), &buffer)
            : LentBuffers::make_counted(env, found.data, found.bytes, std::move(keeper), &buffer);
    if (status == napi_ok) return buffer;
  }
  if (status == napi_no_external_buffers_allowed) {
    status = make_own(env, found.data, found.bytes, true, &buffer);
    if (status == napi_ok) state_->copies.add(found.bytes);
  }
  (void)state_->leases->release(hold, use);
  return status == napi_ok ? buffer : throw_no_memory(env);
}

Leases::Released Lending::end_hold(napi_env env, uint32_t hold, Leases::Use use,
                                   napi_value buffer) {
  // Detached by somebody else: its memory lives on in another buffer, and the finalizer gives back.
  if (!state_->lent.detach(env, buffer)) return {};
  return state_->leases->release(hold, use);
}

void Lending::on_collected(napi_env env, napi_value callback) {
  refer(env, callback, state_->collected);
}

void Lending::on_loan_collected(napi_env env, napi_value callback) {
  refer(env, callback, state_->forgotten);
}

}  // namespace millrace::addon
