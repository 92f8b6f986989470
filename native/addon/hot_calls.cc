#include <node_api.h>

#include "addon/calls.h"
#include "addon/environment.h"
#include "addon/errors.h"

namespace millrace::addon {

napi_value flush(napi_env env, napi_callback_info info) {
  napi_value arguments[2];
  size_t count = 2;
  void* data = nullptr;
  int32_t handle = 0;
  int32_t rows = 0;
  napi_get_cb_info(env, info, &count, arguments, nullptr, &data);
  if (napi_get_value_int32(env, arguments[0], &handle) != napi_ok) {
    return throw_type(env, "flush", "handle", "a number");
  }
  if (napi_get_value_int32(env, arguments[1], &rows) != napi_ok) {
    return throw_type(env, "flush", "rows", "a number");
  }
  OpenMember* open = static_cast<Environment*>(data)->find<OpenMember>(handle);
  if (open == nullptr) return throw_closed(env, "flush");
  if (rows < 0 || rows > static_cast<int32_t>(transport::kSendRows)) {
    return throw_range(env, "flush", "rows", "from 0 to 4096");
  }
  if (open->buffers.copied()) open->buffers.push(env, static_cast<uint32_t>(rows));
  const uint32_t bits = open->member->flush(static_cast<uint32_t>(rows));
  if (open->buffers.copied()) open->buffers.pull(env, 0, open->peers);
  napi_value result = nullptr;
  napi_create_uint32(env, bits, &result);
  return result;
}

napi_value poll(napi_env env, napi_callback_info info) {
  napi_value arguments[4];
  size_t count = 4;
  void* data = nullptr;
  int32_t handle = 0;
  int32_t offset = 0;
  int32_t frames = 0;
  napi_get_cb_info(env, info, &count, arguments, nullptr, &data);
  if (napi_get_value_int32(env, arguments[0], &handle) != napi_ok) {
    return throw_type(env, "poll", "handle", "a number");
  }
  OpenMember* open = static_cast<Environment*>(data)->find<OpenMember>(handle);
  if (open == nullptr) return throw_closed(env, "poll");
  napi_typedarray_type type = napi_int8_array;
  size_t length = 0;
  void* bytes = nullptr;
  if (napi_get_typedarray_info(env, arguments[1], &type, &length, &bytes, nullptr, nullptr) !=
          napi_ok ||
      type != napi_uint8_array) {
    return throw_type(env, "poll", "target", "a Uint8Array");
  }
  if (napi_get_value_int32(env, arguments[2], &offset) != napi_ok) {
    return throw_type(env, "poll", "offset", "a number");
  }
  if (napi_get_value_int32(env, arguments[3], &frames) != napi_ok) {
    return throw_type(env, "poll", "maxFrames", "a number");
  }
  if (offset < 0 || static_cast<size_t>(offset) > length) {
    return throw_range(env, "poll", "offset", "within the target");
  }
  if (frames < 0) return throw_range(env, "poll", "maxFrames", "0 or more");
  const uint32_t rows =
      open->member->poll({static_cast<uint8_t*>(bytes), length}, static_cast<size_t>(offset),
                         static_cast<uint32_t>(frames));
  if (open->buffers.copied()) open->buffers.pull(env, rows, open->peers);
  napi_value result = nullptr;
  napi_create_uint32(env, rows, &result);
  return result;
}

napi_value linger(napi_env env, napi_callback_info info) {
  napi_value arguments[2];
  size_t count = 2;
  void* data = nullptr;
  int32_t handle = 0;
  int32_t micros = 0;
  napi_get_cb_info(env, info, &count, arguments, nullptr, &data);
  if (napi_get_value_int32(env, arguments[0], &handle) != napi_ok) {
    return throw_type(env, "linger", "handle", "a number");
  }
  if (napi_get_value_int32(env, arguments[1], &micros) != napi_ok) {
    return throw_type(env, "linger", "micros", "a number");
  }
  OpenMember* open = static_cast<Environment*>(data)->find<OpenMember>(handle);
  if (open == nullptr) return throw_closed(env, "linger");
  if (micros < 0) return throw_range(env, "linger", "micros", "0 or more");
  napi_value result = nullptr;
  napi_create_uint32(
      env, static_cast<uint32_t>(open->member->linger(static_cast<uint32_t>(micros))), &result);
  return result;
}

napi_value arm(napi_env env, napi_callback_info info) {
  napi_value arguments[1];
  size_t count = 1;
  void* data = nullptr;
  int32_t handle = 0;
  napi_get_cb_info(env, info, &count, arguments, nullptr, &data);
  if (napi_get_value_int32(env, arguments[0], &handle) != napi_ok) {
    return throw_type(env, "arm", "handle", "a number");
  }
  OpenMember* open = static_cast<Environment*>(data)->find<OpenMember>(handle);
  if (open == nullptr) return throw_closed(env, "arm");
  napi_value result = nullptr;
  napi_get_boolean(env, open->member->arm(), &result);
  return result;
}

}  // namespace millrace::addon
