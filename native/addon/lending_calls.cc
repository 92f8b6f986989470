#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <limits>

#include "addon/arguments.h"
#include "addon/calls.h"
#include "addon/errors.h"

namespace millrace::addon {
namespace {

using transport::Leases;
using transport::Pool;

constexpr int64_t kMaxSafeInteger = (int64_t{1} << 53) - 1;
constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();

Napi::Value failed(const Napi::CallbackInfo& info, const base::Status& status) {
  throw_status(info.Env(), status);
  return {};
}

/** A spare slab that is made on a thread of libuv's pool. Node.js waits for it before the
 * environment ends. */
struct Growth {
  napi_async_work work = nullptr;
  Environment* environment;
  int32_t handle;
  uint64_t incarnation;
  base::Fd folder;
  Pool::Slab slab;
  base::Status status;

  static void run(napi_env, void* data) {
    auto* self = static_cast<Growth*>(data);
    self->status = Pool::make_slab(self->folder.get(), self->incarnation, self->slab, true);
  }

  static void done(napi_env env, napi_status, void* data) {
    const std::unique_ptr<Growth> self(static_cast<Growth*>(data));
    napi_delete_async_work(env, self->work);
    OpenMember* const open = self->environment->find<OpenMember>(self->handle);
    Pool* const pool = open == nullptr ? nullptr : open->lending.open_pool();
    if (pool != nullptr) pool->planned_done();
    // Without room for a spare one goes on without; a loan that finds nothing says why.
    if (!self->status.ok()) return;
    if (pool != nullptr) return pool->adopt(std::move(self->slab));
    unlinkat(self->folder.get(), transport::pool_file(self->incarnation, self->slab.number).c_str(),
             0);
  }
};

void grow_ahead(Arguments& arguments, Pool& pool) {
  std::optional<Pool::Slab> slab = pool.plan();
  if (!slab.has_value()) return;
  auto growth = std::make_unique<Growth>();
  growth->environment = &arguments.environment();
  growth->handle = arguments.handle();
  growth->incarnation = pool.options().incarnation;
  growth->folder = base::Fd(fcntl(pool.folder(), F_DUPFD_CLOEXEC, 0));
  growth->slab = std::move(*slab);
  napi_env env = arguments.env();
  napi_value name = nullptr;
  napi_create_string_utf8(env, "millrace pool", NAPI_AUTO_LENGTH, &name);
  if (!growth->folder.valid() ||
      napi_create_async_work(env, nullptr, name, Growth::run, Growth::done, growth.get(),
                             &growth->work) != napi_ok) {
    return pool.planned_done();
  }
  if (napi_queue_async_work(env, growth->work) == napi_ok) {
    (void)growth.release();
  } else {
    napi_delete_async_work(env, growth->work);
    pool.planned_done();
  }
}

/** The handle's pool and a block of it that is lent; throws otherwise. */
Pool* lent(Arguments& arguments, OpenMember* open, uint32_t block) {
  if (!arguments.ok()) return nullptr;
  Pool* const pool = open->lending.open_pool();
  if (pool != nullptr && pool->lent(block)) return pool;
  throw_status(arguments.env(), base::Status::error(EINVAL, arguments.call(), "no such loan"));
  return nullptr;
}

Leases::Use use_of(Arguments& arguments, size_t index, int64_t most) {
  return static_cast<Leases::Use>(arguments.integer(index, "use", 0, most));
}

Napi::Value released(const Napi::CallbackInfo& info, const Leases::Released& what) {
  return Napi::Number::New(info.Env(),
                           (what.last ? 1 : 0) | (what.wanted ? 2 : 0) | what.strays << 2);
}

}  // namespace

Napi::Value lend(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "lend");
  OpenMember* const open = arguments.member();
  const int64_t bytes = arguments.integer(1, "bytes", 1, kMaxSafeInteger);
  const bool remote = arguments.boolean(2, "remote");
  if (!arguments.ok()) return {};
  auto pool = open->lending.pool();
  if (!pool.ok()) return failed(info, pool.status());
  const auto block = pool.value()->lend(static_cast<uint64_t>(bytes));
  if (!block.ok() && block.status().code != EAGAIN) return failed(info, block.status());
  if (block.ok() && remote) {
    const base::Status status = pool.value()->enroll(block.value());
    if (!status.ok()) {
      pool.value()->retire(block.value());
      return failed(info, status);
    }
  }
  if (block.ok()) grow_ahead(arguments, *pool.value());
  return Napi::Number::New(info.Env(), block.ok() ? static_cast<double>(block.value()) : -1);
}

Napi::Value loan_buffer(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "loanBuffer");
  OpenMember* const open = arguments.member();
  const auto block = static_cast<uint32_t>(arguments.integer(1, "block", 0, kMaxUint32));
  const int64_t bytes = arguments.integer(2, "bytes", 1, kMaxSafeInteger);
  Pool* const pool = lent(arguments, open, block);
  if (pool == nullptr) return {};
  if (static_cast<uint64_t>(bytes) > pool->capacity(block)) {
    return failed(info, base::Status::error(EINVAL, "loanBuffer", "larger than the block"));
  }
  return {info.Env(), open->lending.loan_buffer(info.Env(), block, static_cast<uint64_t>(bytes))};
}

Napi::Value end_loan(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "endLoan");
  OpenMember* const open = arguments.member();
  const auto block = static_cast<uint32_t>(arguments.integer(1, "block", 0, kMaxUint32));
  if (lent(arguments, open, block) == nullptr) return {};
  return Napi::Boolean::New(info.Env(), open->lending.end_loan(info.Env(), block, info[2]));
}

Napi::Value retire_block(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "retireBlock");
  OpenMember* const open = arguments.member();
  const auto block = static_cast<uint32_t>(arguments.integer(1, "block", 0, kMaxUint32));
  if (!arguments.ok()) return {};
  if (open->lending.open_pool() != nullptr) open->lending.open_pool()->retire(block);
  return info.Env().Undefined();
}

Napi::Value hold_room(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "holdRoom");
  OpenMember* const open = arguments.member();
  const int64_t receiver = arguments.integer(1, "receiver", 1, kMaxSafeInteger);
  const int64_t bytes = arguments.integer(2, "bytes", 1, kMaxSafeInteger);
  if (!arguments.ok()) return {};
  Pool* const pool = open->lending.open_pool();
  return Napi::Boolean::New(
      info.Env(),
      pool != nullptr && pool->room(static_cast<uint64_t>(receiver), static_cast<uint64_t>(bytes)));
}

Napi::Value offer_hold(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "offerHold");
  OpenMember* const open = arguments.member();
  const auto block = static_cast<uint32_t>(arguments.integer(1, "block", 0, kMaxUint32));
  const int64_t receiver = arguments.integer(2, "receiver", 1, kMaxSafeInteger);
  const int64_t bytes = arguments.integer(3, "bytes", 1, kMaxSafeInteger);
  const std::span<uint8_t> target = arguments.bytes(4, "target");
  const int64_t offset = arguments.integer(5, "offset", 0, kMaxSafeInteger);
  const bool remote = arguments.boolean(6, "remote");
  Pool* const pool = lent(arguments, open, block);
  if (pool == nullptr) return {};
  if (static_cast<uint64_t>(bytes) > pool->capacity(block) ||
      target.size() < transport::kDescriptorBytes ||
      static_cast<uint64_t>(offset) > target.size() - transport::kDescriptorBytes) {
    return failed(info, base::Status::error(EINVAL, "offerHold", "bytes or offset out of range"));
  }
  uint8_t* const at = target.data() + offset;
  const auto to = static_cast<uint64_t>(receiver);
  const auto size = static_cast<uint64_t>(bytes);
  const base::Status status =
      remote ? pool->offer_remote(block, to, size, at) : pool->offer(block, to, size, at);
  if (!status.ok() && status.code != EAGAIN) return failed(info, status);
  return Napi::Boolean::New(info.Env(), status.ok());
}

Napi::Value landed_hold(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "landedHold");
  OpenMember* const open = arguments.member();
  const int64_t receiver = arguments.integer(1, "receiver", 1, kMaxSafeInteger);
  const int64_t serial = arguments.integer(2, "serial", 1, kMaxSafeInteger);
  if (!arguments.ok()) return {};
  Pool* const pool = open->lending.open_pool();
  return Napi::Boolean::New(
      info.Env(), pool != nullptr &&
                      pool->landed(static_cast<uint64_t>(receiver), static_cast<uint64_t>(serial)));
}

Napi::Value collect_holds(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "collectHolds");
  OpenMember* const open = arguments.member();
  const bool want = arguments.boolean(1, "want");
  if (!arguments.ok()) return {};
  Pool* const pool = open->lending.open_pool();
  if (pool == nullptr) return Napi::Number::New(info.Env(), 0);
  pool->want(want);
  (void)pool->collect();
  return Napi::Number::New(info.Env(), static_cast<double>(pool->returned()));
}

Napi::Value receiver_gone(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "receiverGone");
  OpenMember* const open = arguments.member();
  const int64_t receiver = arguments.integer(1, "receiver", 1, kMaxSafeInteger);
  const bool dead = arguments.boolean(2, "dead");
  if (!arguments.ok()) return {};
  Pool* const pool = open->lending.open_pool();
  if (pool != nullptr) pool->receiver_gone(static_cast<uint64_t>(receiver), dead);
  return info.Env().Undefined();
}

namespace {

/** What takeHold and revokeHold are called with. */
struct HoldCall {
  transport::Leases* leases =
      nullptr;             ///< of the member, argument 0; null: an exception is pending
  uint64_t publisher = 0;  ///< 1
  std::span<const uint8_t> descriptor;  ///< from the offset (3) in the bytes (2)
};

HoldCall hold_call(const Napi::CallbackInfo& info, const char* name) {
  Arguments arguments(info, name);
  OpenMember* const open = arguments.member();
  const int64_t publisher = arguments.integer(1, "publisher", 1, kMaxSafeInteger);
  const std::span<uint8_t> source = arguments.bytes(2, "source");
  const int64_t offset = arguments.integer(3, "offset", 0, kMaxSafeInteger);
  if (!arguments.ok()) return {};
  auto leases = open->lending.leases();
  if (!leases.ok()) {
    failed(info, leases.status());
    return {};
  }
  const auto from = std::min(static_cast<size_t>(offset), source.size());
  return {leases.value(), static_cast<uint64_t>(publisher),
          source.subspan(from, std::min(source.size() - from, transport::kDescriptorBytes))};
}

}  // namespace

Napi::Value take_hold(const Napi::CallbackInfo& info) {
  const HoldCall call = hold_call(info, "takeHold");
  if (call.leases == nullptr) return {};
  const auto hold = call.leases->take(call.publisher, call.descriptor);
  // Taken back, or by a publisher that is gone with all its files: nothing is wrong here.
  if (!hold.ok() && hold.status().code == ENOENT) return Napi::Number::New(info.Env(), 0);
  if (!hold.ok()) return failed(info, hold.status());
  return Napi::Number::New(info.Env(), hold.value());
}

Napi::Value revoke_hold(const Napi::CallbackInfo& info) {
  const HoldCall call = hold_call(info, "revokeHold");
  if (call.leases == nullptr) return {};
  call.leases->revoke(call.publisher, call.descriptor);
  return info.Env().Undefined();
}

Napi::Value land(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "land");
  OpenMember* const open = arguments.member();
  const auto peer = static_cast<uint32_t>(arguments.integer(1, "peer", 0, kMaxUint32));
  const std::span<uint8_t> source = arguments.bytes(2, "source");
  const int64_t offset = arguments.integer(3, "offset", 0, kMaxSafeInteger);
  if (!arguments.ok()) return {};
  auto pool = open->lending.pool();
  if (!pool.ok()) return failed(info, pool.status());
  auto leases = open->lending.leases();
  if (!leases.ok()) return failed(info, leases.status());
  const auto from = std::min(static_cast<size_t>(offset), source.size());
  const auto landing =
      transport::land(*open->member, peer, source.subspan(from), *pool.value(), *leases.value());
  if (!landing.ok() && landing.status().code == EAGAIN) return info.Env().Null();
  if (!landing.ok()) return failed(info, landing.status());
  grow_ahead(arguments, *pool.value());
  Napi::Object result = Napi::Object::New(info.Env());
  result.Set("hold", landing.value().hold);
  result.Set("fetch", landing.value().fetch);
  return result;
}

Napi::Value hold_buffer(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "holdBuffer");
  OpenMember* const open = arguments.member();
  const auto hold = static_cast<uint32_t>(arguments.integer(1, "hold", 1, kMaxUint32));
  const Leases::Use use = use_of(arguments, 2, 1);
  if (!arguments.ok()) return {};
  auto leases = open->lending.leases();
  if (!leases.ok()) return failed(info, leases.status());
  return {info.Env(), open->lending.hold_buffer(info.Env(), hold, use)};
}

Napi::Value end_hold(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "endHold");
  OpenMember* const open = arguments.member();
  const auto hold = static_cast<uint32_t>(arguments.integer(1, "hold", 1, kMaxUint32));
  const Leases::Use use = use_of(arguments, 2, 2);
  if (!arguments.ok()) return {};
  if (open->lending.open_leases() == nullptr) return released(info, {});
  // Without a buffer there is nothing to be emptied.
  if (!info[3].IsArrayBuffer())
    return released(info, open->lending.open_leases()->release(hold, use));
  return released(info, open->lending.end_hold(info.Env(), hold, use, info[3]));
}

Napi::Value publisher_gone(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "publisherGone");
  OpenMember* const open = arguments.member();
  const int64_t publisher = arguments.integer(1, "publisher", 1, kMaxSafeInteger);
  if (!arguments.ok()) return {};
  auto leases = open->lending.leases();
  if (!leases.ok()) return failed(info, leases.status());
  leases.value()->publisher_gone(static_cast<uint64_t>(publisher));
  return info.Env().Undefined();
}

Napi::Value vacate(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "vacate");
  OpenMember* const open = arguments.member();
  const int64_t publisher = arguments.integer(1, "publisher", 1, kMaxSafeInteger);
  if (!arguments.ok()) return {};
  Leases* const leases = open->lending.open_leases();
  return Napi::Number::New(
      info.Env(), leases == nullptr ? 0 : leases->vacate(static_cast<uint64_t>(publisher)));
}

Napi::Value close_leases(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "closeLeases");
  OpenMember* const open = arguments.member();
  if (!arguments.ok()) return {};
  if (open->lending.open_leases() != nullptr) open->lending.open_leases()->close();
  return info.Env().Undefined();
}

Napi::Value on_collected(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "onCollected");
  OpenMember* const open = arguments.member();
  const Napi::Function callback = arguments.function(1, "callback");
  if (!arguments.ok()) return {};
  open->lending.on_collected(info.Env(), callback);
  return info.Env().Undefined();
}

Napi::Value detach_buffer(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "detachBuffer");
  if (info[0].IsArrayBuffer()) (void)napi_detach_arraybuffer(info.Env(), info[0]);
  return info.Env().Undefined();
}

Napi::Value sweep_pool(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "sweepPool");
  const std::string folder = arguments.text(0, "folder");
  const int64_t publisher = arguments.integer(1, "publisher", 1, kMaxSafeInteger);
  if (!arguments.ok()) return {};
  const base::Fd descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor.valid()) return Napi::Number::New(info.Env(), 0);
  return Napi::Number::New(
      info.Env(), transport::sweep_pool(descriptor.get(), static_cast<uint64_t>(publisher)));
}

}  // namespace millrace::addon
