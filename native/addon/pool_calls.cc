#include <errno.h>
#include <fcntl.h>

#include "addon/arguments.h"
#include "addon/calls.h"
#include "addon/errors.h"
#include "addon/hot_arguments.h"

/** This member's pool: see the first part of src/native/lending-calls.ts. */
namespace millrace::addon {
namespace {

using transport::Pool;

template <size_t kCount>
uint32_t block_of(HotArguments<kCount>& arguments) {
  return static_cast<uint32_t>(arguments.integer(1, "block", 0, kMaxUint32));
}

/** The member's pool, where the block is lent. Null with an exception. */
template <size_t kCount>
Pool* lender(const HotArguments<kCount>& arguments, uint32_t block, const char* call) {
  if (!arguments.ok()) return nullptr;
  Pool* const pool = arguments.member().lending.open_pool();
  if (pool != nullptr && pool->lent(block)) return pool;
  throw_status(arguments.env(), base::Status::error(EINVAL, call, "no such loan"));
  return nullptr;
}

}  // namespace

napi_value lend(napi_env env, napi_callback_info info) {
  HotArguments<3> arguments(env, info, "lend");
  const int64_t bytes = arguments.integer(1, "bytes", 1, kMaxSafeInteger);
  const bool remote = arguments.boolean(2, "remote");
  if (!arguments.ok()) return nullptr;
  auto opened = arguments.member().lending.pool();
  if (!opened.ok()) return throw_status(env, opened.status());
  Pool& pool = *opened.value();
  const auto block = pool.lend(static_cast<uint64_t>(bytes));
  if (!block.ok() && block.status().code == EAGAIN) return make_number(env, -1.0);
  if (!block.ok()) return throw_status(env, block.status());
  if (remote) {
    const base::Status status = pool.enroll(block.value());
    if (!status.ok()) {
      pool.retire(block.value());
      return throw_status(env, status);
    }
  }
  return make_number(env, block.value());
}

napi_value lend_free(napi_env env, napi_callback_info info) {
  HotArguments<2> arguments(env, info, "lendFree");
  const int64_t bytes = arguments.integer(1, "bytes", 1, kMaxSafeInteger);
  if (!arguments.ok()) return nullptr;
  Lending& lending = arguments.member().lending;
  if (lending.open_pool() == nullptr || !lending.external_buffers()) return make_number(env, -1.0);
  const auto block = lending.open_pool()->lend_free(static_cast<uint64_t>(bytes));
  return make_number(env, block.has_value() ? static_cast<double>(*block) : -1.0);
}

napi_value loan_buffer(napi_env env, napi_callback_info info) {
  HotArguments<3> arguments(env, info, "loanBuffer");
  const uint32_t block = block_of(arguments);
  const auto bytes = static_cast<uint64_t>(arguments.integer(2, "bytes", 1, kMaxSafeInteger));
  Pool* const pool = lender(arguments, block, "loanBuffer");
  if (pool == nullptr) return nullptr;
  if (bytes > pool->capacity(block)) {
    return throw_status(env, base::Status::error(EINVAL, "loanBuffer", "larger than the block"));
  }
  return arguments.member().lending.loan_buffer(env, block, bytes);
}

napi_value end_loan(napi_env env, napi_callback_info info) {
  HotArguments<3> arguments(env, info, "endLoan");
  const uint32_t block = block_of(arguments);
  if (lender(arguments, block, "endLoan") == nullptr) return nullptr;
  return make_boolean(env, arguments.member().lending.end_loan(env, block, arguments.value(2)));
}

napi_value retire_block(napi_env env, napi_callback_info info) {
  HotArguments<2> arguments(env, info, "retireBlock");
  const uint32_t block = block_of(arguments);
  if (!arguments.ok()) return nullptr;
  Pool* const pool = arguments.member().lending.open_pool();
  if (pool != nullptr) pool->retire(block);
  return nullptr;
}

napi_value hold_room(napi_env env, napi_callback_info info) {
  HotArguments<3> arguments(env, info, "holdRoom");
  const int64_t receiver = arguments.integer(1, "receiver", 1, kMaxSafeInteger);
  const int64_t bytes = arguments.integer(2, "bytes", 1, kMaxSafeInteger);
  if (!arguments.ok()) return nullptr;
  Pool* const pool = arguments.member().lending.open_pool();
  if (pool == nullptr) return make_number(env, 0u);
  return make_number(env, static_cast<double>(pool->room(static_cast<uint64_t>(receiver),
                                                         static_cast<uint64_t>(bytes))));
}

napi_value offer_hold(napi_env env, napi_callback_info info) {
  HotArguments<6> arguments(env, info, "offerHold");
  const uint32_t block = block_of(arguments);
  const auto receiver = static_cast<uint64_t>(arguments.integer(2, "receiver", 1, kMaxSafeInteger));
  const auto bytes = static_cast<uint64_t>(arguments.integer(3, "bytes", 1, kMaxSafeInteger));
  const auto offset = static_cast<uint64_t>(arguments.integer(4, "offset", 0, kMaxSafeInteger));
  const bool remote = arguments.boolean(5, "remote");
  Pool* const pool = lender(arguments, block, "offerHold");
  if (pool == nullptr) return nullptr;
  const std::span<uint8_t> target = arguments.member().buffers.arena(env);
  if (bytes > pool->capacity(block) || target.size() < transport::kDescriptorBytes ||
      offset > target.size() - transport::kDescriptorBytes) {
    return throw_status(env,
                        base::Status::error(EINVAL, "offerHold", "bytes or offset out of range"));
  }
  uint8_t* const at = target.data() + offset;
  const base::Status status = remote ? pool->offer_remote(block, receiver, bytes, at)
                                     : pool->offer(block, receiver, bytes, at);
  if (!status.ok() && status.code != EAGAIN) return throw_status(env, status);
  return make_boolean(env, status.ok());
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

Napi::Value on_loan_collected(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "onLoanCollected");
  OpenMember* const open = arguments.member();
  const Napi::Function callback = arguments.function(1, "callback");
  if (!arguments.ok()) return {};
  open->lending.on_loan_collected(info.Env(), callback);
  return info.Env().Undefined();
}

}  // namespace millrace::addon
