#pragma once

#include <napi.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "addon/environment.h"

namespace millrace::addon {

/** Up to here a number is every integer: Number.MAX_SAFE_INTEGER. */
inline constexpr int64_t kMaxSafeInteger = (int64_t{1} << 53) - 1;
inline constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();

/**
 * Reads the arguments of one call, in order, and checks them. The first wrong one throws
 * (TypeError, RangeError or ECLOSED) and makes `ok()` false; what is read after that is empty. Only
 * for calls that are not hot.
 */
class Arguments {
 public:
  /** `call` is the call's name, for messages; a literal. */
  Arguments(const Napi::CallbackInfo& info, const char* call)
      : info_(info), call_(call), environment_(*static_cast<Environment*>(info.Data())) {}

  bool ok() const { return ok_; }
  napi_env env() const { return info_.Env(); }
  Environment& environment() const { return environment_; }
  const char* call() const { return call_; }

  /** The first argument as a handle. Null exactly when not ok(). */
  OpenMember* member() { return open<OpenMember>(); }
  /** The same for a port, or (OpenHandle) for either. */
  template <class Kind>
  Kind* open() {
    handle_ = static_cast<int32_t>(integer(0, "handle", INT32_MIN, INT32_MAX));
    if (!ok_) return nullptr;
    Kind* found = environment_.find<Kind>(handle_);
    if (found == nullptr) closed();
    return found;
  }
  int32_t handle() const { return handle_; }

  int64_t integer(size_t index, const char* name, int64_t least, int64_t most);
  bool boolean(size_t index, const char* name);
  std::string text(size_t index, const char* name);
  /** The bytes of a Uint8Array; valid until the call returns to JavaScript. */
  std::span<uint8_t> bytes(size_t index, const char* name);
  Napi::Function function(size_t index, const char* name);
  Napi::Object object(size_t index, const char* name);

  /** Properties of an object; `where` is its name in messages. Getters may run (and throw). */
  std::string text(const Napi::Object& object, const char* name);
  int64_t integer(const Napi::Object& object, const char* name, int64_t least, int64_t most);
  double number(const Napi::Object& object, const char* name, double least, double most,
                double otherwise);
  /** An object, or empty for undefined. */
  Napi::Object optional_object(const Napi::Object& object, const char* name);

 private:
  void closed();
  bool get(const Napi::Object& object, const char* name, Napi::Value& value);
  int64_t to_integer(Napi::Value value, const char* name, int64_t least, int64_t most);
  std::string to_text(Napi::Value value, const char* name);
  void wrong_type(const char* name, const char* wanted);
  void wrong_range(const char* name, double least, double most);

  const Napi::CallbackInfo& info_;
  const char* call_;
  Environment& environment_;
  int32_t handle_ = 0;
  bool ok_ = true;
};

}  // namespace millrace::addon
