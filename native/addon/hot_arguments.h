#pragma once

#include <node_api.h>

#include <cmath>
#include <cstdint>
#include <span>

#include "addon/environment.h"
#include "addon/errors.h"
#include "base/status.h"

namespace millrace::addon {

/**
 * The arguments of a hot call, on the bare C interface: what Arguments does would show in these.
 * The first is the member's handle. The first wrong one throws (TypeError, RangeError or ECLOSED)
 * and makes ok() false; what is read after that is empty.
 */
template <size_t kCount>
class HotArguments {
 public:
  /** `call` is the call's name, for messages; a literal. */
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
  napi_env env() const { return env_; }
  OpenMember& member() const { return *member_; }
  napi_value value(size_t index) const { return values_[index]; }

  /** An integer from `least` to `most`; `least` if not ok(). */
  int64_t integer(size_t index, const char* name, int64_t least, int64_t most) {
    double number = 0;
    if (!ok()) return least;
    if (napi_get_value_double(env_, values_[index], &number) != napi_ok ||
        std::trunc(number) != number) {  // NaN too
      throw_type(env_, call_, name, "an integer");
    } else if (number < static_cast<double>(least) || number > static_cast<double>(most)) {
      throw_range(env_, call_, name,
                  base::format("from %lld to %lld", static_cast<long long>(least),
                               static_cast<long long>(most)));
    } else {
      return static_cast<int64_t>(number);
    }
    member_ = nullptr;
    return least;
  }

  bool boolean(size_t index, const char* name) {
    bool value = false;
    if (!ok()) return false;
    if (napi_get_value_bool(env_, values_[index], &value) == napi_ok) return value;
    throw_type(env_, call_, name, "a boolean");
    member_ = nullptr;
    return false;
  }

  /** The bytes of a Uint8Array; valid until the call returns to JavaScript. */
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

inline napi_value make_number(napi_env env, double value) {
  napi_value result = nullptr;
  napi_create_double(env, value, &result);
  return result;
}

inline napi_value make_number(napi_env env, uint32_t value) {
  napi_value result = nullptr;
  napi_create_uint32(env, value, &result);
  return result;
}

inline napi_value make_boolean(napi_env env, bool value) {
  napi_value result = nullptr;
  napi_get_boolean(env, value, &result);
  return result;
}

}  // namespace millrace::addon
