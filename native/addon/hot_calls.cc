#include <node_api.h>

#include <cstdint>
#include <span>

#include "addon/calls.h"
#include "addon/environment.h"
#include "addon/errors.h"

namespace millrace::addon {
namespace {

/**
 * The arguments of a hot call, on the bare C interface: what Arguments does would show in these.
 * The first wrong one throws (TypeError, RangeError or ECLOSED) and makes ok() false.
 */
template <size_t kCount>
class HotArguments {
 public:
  /** `call` is the call's name, for messages. The first argument is the member's handle. */
  HotArguments(napi_env env, napi_callback_info info, const char* call) : env_(env), call_(call) {
    size_t count = kCount;
    void* data = nullptr;
    int32_t handle = 0;
    napi_get_cb_info(env, info, &count, values_, nullptr, &data);
    if (napi_get_value_int32(env, values_[0], &handle) != napi_ok) {
      throw_type(env, call, "handle", "a number");
      return;
    }
    member_ = static_cast<Environment*>(data)->find<OpenMember>(handle);
    if (member_ == nullptr) throw_closed(env, call);
  }

  bool ok() const { return member_ != nullptr; }
  OpenMember& member() const { return *member_; }

  /** From 0 to `most`; `range` says so in words. 0 if not ok(). */
  uint32_t integer(size_t index, const char* name, size_t most, const char* range) {
    int32_t value = 0;
    if (!ok()) return 0;
    if (napi_get_value_int32(env_, values_[index], &value) != napi_ok) {
      throw_type(env_, call_, name, "a number");
    } else if (value < 0 || static_cast<size_t>(value) > most) {
      throw_range(env_, call_, name, range);
    } else {
      return static_cast<uint32_t>(value);
    }
    member_ = nullptr;
    return 0;
  }

  std::span<uint8_t> bytes(size_t index, const char* name) {
    napi_typedarray_type type = napi_int8_array;
    size_t length = 0;
    void* bytes = nullptr;
    if (!ok()) return {};
    if (napi_get_typedarray_info(env_, values_[index], &type, &length, &bytes, nullptr, nullptr) ==
            napi_ok &&
        type == napi_uint8_array)
      return {static_cast<uint8_t*>(bytes), length};
    throw_type(env_, call_, name, "a Uint8Array");
    member_ = nullptr;
    return {};
  }

 private:
  const napi_env env_;
  const char* const call_;
  napi_value values_[kCount] = {};
  OpenMember* member_ = nullptr;
};

napi_value number(napi_env env, uint32_t value) {
  napi_value result = nullptr;
  napi_create_uint32(env, value, &result);
  return result;
}

}  // namespace

napi_value flush(napi_env env, napi_callback_info info) {
  HotArguments<2> arguments(env, info, "flush");
  const uint32_t rows = arguments.integer(1, "rows", transport::kSendRows, "from 0 to 4096");
  if (!arguments.ok()) return nullptr;
  OpenMember& open = arguments.member();
  if (open.buffers.copied()) open.buffers.push(env, rows);
  const uint32_t bits = open.member->flush(rows);
  if (open.buffers.copied()) open.buffers.pull(env, 0, open.peers);
  return number(env, bits);
}

napi_value poll(napi_env env, napi_callback_info info) {
  HotArguments<4> arguments(env, info, "poll");
  const std::span<uint8_t> target = arguments.bytes(1, "target");
  const uint32_t offset = arguments.integer(2, "offset", target.size(), "within the target");
  const uint32_t frames = arguments.integer(3, "maxFrames", INT32_MAX, "0 or more");
  if (!arguments.ok()) return nullptr;
  OpenMember& open = arguments.member();
  const uint32_t rows = open.member->poll(target, offset, frames);
  if (open.buffers.copied()) open.buffers.pull(env, rows, open.peers);
  return number(env, rows);
}

napi_value linger(napi_env env, napi_callback_info info) {
  HotArguments<2> arguments(env, info, "linger");
  const uint32_t micros = arguments.integer(1, "micros", INT32_MAX, "0 or more");
  if (!arguments.ok()) return nullptr;
  return number(env, static_cast<uint32_t>(arguments.member().member->linger(micros)));
}

napi_value arm(napi_env env, napi_callback_info info) {
  HotArguments<1> arguments(env, info, "arm");
  if (!arguments.ok()) return nullptr;
  napi_value result = nullptr;
  napi_get_boolean(env, arguments.member().member->arm(), &result);
  return result;
}

}  // namespace millrace::addon
