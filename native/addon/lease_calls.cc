#include <errno.h>

#include <algorithm>

#include "addon/arguments.h"
#include "addon/calls.h"
#include "addon/errors.h"
#include "addon/hot_arguments.h"
#include "addon/lent_buffers.h"

/** Blocks of other members: see the second part of src/native/lending-calls.ts. */
namespace millrace::addon {
namespace {

using transport::Leases;

Napi::Value failed(const Napi::CallbackInfo& info, const base::Status& status) {
  throw_status(info.Env(), status);
  return {};
}

/** USE.LAST of src/native/lending-calls.ts. */
constexpr int64_t kLeasedAndTaken = 3;

napi_value released(napi_env env, const Leases::Released& what) {
  return make_number(env, (what.last ? 1u : 0u) | (what.wanted ? 2u : 0u) | what.strays << 2);
}

/** The leases that an offer is about, and its descriptor: what lies in `source` from `offset` on.
 */
struct OfferCall {
  HotArguments<4> arguments;
  Leases* leases = nullptr;  ///< null: an exception is pending
  uint64_t publisher = 0;
  std::span<const uint8_t> descriptor;

  OfferCall(napi_env env, napi_callback_info info, const char* call) : arguments(env, info, call) {
    publisher = static_cast<uint64_t>(arguments.integer(1, "publisher", 1, kMaxSafeInteger));
    const std::span<uint8_t> source = arguments.bytes(2, "source");
    const auto offset = static_cast<size_t>(arguments.integer(3, "offset", 0, kMaxSafeInteger));
    if (!arguments.ok()) return;
    auto opened = arguments.member().lending.leases();
    if (!opened.ok()) {
      throw_status(env, opened.status());
      return;
    }
    leases = opened.value();
    const size_t from = std::min(offset, source.size());
    descriptor = source.subspan(from, std::min(source.size() - from, transport::kDescriptorBytes));
  }
};

}  // namespace

napi_value take_hold(napi_env env, napi_callback_info info) {
  const OfferCall call(env, info, "takeHold");
  if (call.leases == nullptr) return nullptr;
  const auto hold = call.leases->take(call.publisher, call.descriptor);
  // Taken back, or by a publisher that is gone with all its files: nothing is wrong here.
  if (!hold.ok() && hold.status().code == ENOENT) return make_number(env, 0u);
  if (!hold.ok()) return throw_status(env, hold.status());
  return make_number(env, hold.value());
}

napi_value revoke_hold(napi_env env, napi_callback_info info) {
  const OfferCall call(env, info, "revokeHold");
  if (call.leases != nullptr) call.leases->revoke(call.publisher, call.descriptor);
  return nullptr;
}

napi_value hold_buffer(napi_env env, napi_callback_info info) {
  HotArguments<3> arguments(env, info, "holdBuffer");
  const auto hold = static_cast<uint32_t>(arguments.integer(1, "hold", 1, kMaxUint32));
  const auto use = static_cast<Leases::Use>(arguments.integer(2, "use", 0, 1));
  if (!arguments.ok()) return nullptr;
  auto leases = arguments.member().lending.leases();
  if (!leases.ok()) return throw_status(env, leases.status());
  return arguments.member().lending.hold_buffer(env, hold, use);
}

napi_value end_hold(napi_env env, napi_callback_info info) {
  HotArguments<4> arguments(env, info, "endHold");
  const auto hold = static_cast<uint32_t>(arguments.integer(1, "hold", 1, kMaxUint32));
  const int64_t uses = arguments.integer(2, "use", 0, kLeasedAndTaken);
  if (!arguments.ok()) return nullptr;
  Lending& lending = arguments.member().lending;
  if (lending.open_leases() == nullptr) return released(env, {});
  const auto use = uses == kLeasedAndTaken ? Leases::Use::kLeased : static_cast<Leases::Use>(uses);
  bool buffer = false;
  napi_is_arraybuffer(env, arguments.value(3), &buffer);
  // Without a buffer there is nothing to be emptied.
  Leases::Released what = buffer ? lending.end_hold(env, hold, use, arguments.value(3))
                                 : lending.open_leases()->release(hold, use);
  if (uses == kLeasedAndTaken) {
    const uint32_t strays = what.strays;
    what = lending.open_leases()->release(hold, Leases::Use::kTaken);
    what.strays += strays;
  }
  return released(env, what);
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
  Napi::Object result = Napi::Object::New(info.Env());
  result.Set("hold", landing.value().hold);
  result.Set("fetch", landing.value().fetch);
  return result;
}

Napi::Value publisher_gone(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "publisherGone");
  OpenMember* const open = arguments.member();
  const int64_t publisher = arguments.integer(1, "publisher", 1, kMaxSafeInteger);
  if (!arguments.ok()) return {};
  // Cleaning up behind another one. Where the folder can't be opened (somebody removed it, or no
  // descriptor is left), nothing of that publisher is held here, and whoever comes next removes its
  // files.
  auto leases = open->lending.leases();
  if (leases.ok()) leases.value()->publisher_gone(static_cast<uint64_t>(publisher));
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
  if (info[0].IsArrayBuffer()) (void)LentBuffers::empty(info.Env(), info[0]);
  return info.Env().Undefined();
}

}  // namespace millrace::addon
