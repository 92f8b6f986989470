#include "addon/shared_buffers.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "addon/errors.h"

namespace millrace::addon {
namespace {

using transport::kArenaRelease;
using transport::kEventStride;
using transport::kPeerStride;
using transport::kSendRows;
using transport::kSendStride;

/** Runs when V8 has let go of an ArrayBuffer; may be after the member's close, even after the
 * clean-up hook. */
void release_owner(napi_env, void*, void* hint) {
  delete static_cast<std::shared_ptr<void>*>(hint);
}

template <class T>
std::span<uint8_t> bytes_of(std::span<T> span) {
  return {reinterpret_cast<uint8_t*>(span.data()), span.size_bytes()};
}

}  // namespace

bool external_buffers_allowed() {
  const char* setting = getenv("MILLRACE_EXTERNAL_BUFFERS");
  return setting == nullptr || strcmp(setting, "0") != 0;
}

std::span<uint8_t> SharedBuffers::native(Region region) const {
  switch (region) {
    case kArena:
      return native_.arena;
    case kSends:
      return bytes_of(native_.sends);
    case kEvents:
      return bytes_of(native_.events);
    case kCountersRegion:
      return bytes_of(native_.counters);
    default:
      return bytes_of(native_.peers);
  }
}

napi_status SharedBuffers::wrap(napi_env env, Region region, napi_value* buffer) {
  const std::span<uint8_t> memory = native(region);
  if (!copied_) {
    auto* owner = new std::shared_ptr<void>(native_.owner);
    const napi_status status = napi_create_external_arraybuffer(env, memory.data(), memory.size(),
                                                                release_owner, owner, buffer);
    if (status != napi_ok) delete owner;
    return status;
  }
  void* data = nullptr;
  const napi_status status = napi_create_arraybuffer(env, memory.size(), &data, buffer);
  if (status == napi_ok) memcpy(data, memory.data(), memory.size());
  return status;
}

napi_value SharedBuffers::get(napi_env env) {
  napi_value object = nullptr;
  if (object_ != nullptr) {
    napi_get_reference_value(env, object_, &object);
    return object;
  }
  static constexpr const char* kNames[kRegions] = {"arena", "sends", "events", "counters", "peers"};
  copied_ = !external_buffers_allowed();
  napi_create_object(env, &object);
  for (int i = 0; i < kRegions; ++i) {
    const auto region = static_cast<Region>(i);
    napi_value buffer = nullptr;
    napi_status status = wrap(env, region, &buffer);
    if (status == napi_no_external_buffers_allowed && i == 0) {
      copied_ = true;
      status = wrap(env, region, &buffer);
    }
    if (status != napi_ok) {
      detach(env);
      bool pending = false;
      napi_is_exception_pending(env, &pending);
      return pending ? nullptr
                     : throw_status(env, base::Status::error(ENOMEM, "create ArrayBuffer"));
    }
    napi_create_reference(env, buffer, 1, &references_[i]);
    napi_value value = buffer;
    const size_t size = native(region).size();
    if (region == kSends || region == kEvents) {
      napi_create_typedarray(env, napi_int32_array, size / sizeof(int32_t), buffer, 0, &value);
    } else if (region == kCountersRegion || region == kPeers) {
      napi_create_typedarray(env, napi_float64_array, size / sizeof(double), buffer, 0, &value);
    }
    napi_set_named_property(env, object, kNames[i], value);
  }
  napi_create_reference(env, object, 1, &object_);
  return object;
}

void SharedBuffers::detach(napi_env env) {
  napi_handle_scope scope;
  if (napi_open_handle_scope(env, &scope) != napi_ok) return;
  for (napi_ref& reference : references_) {
    if (reference == nullptr) continue;
    napi_value buffer = nullptr;
    if (napi_get_reference_value(env, reference, &buffer) == napi_ok && buffer != nullptr) {
      (void)napi_detach_arraybuffer(env, buffer);  // refused if it is detached already
    }
    napi_delete_reference(env, reference);
    reference = nullptr;
  }
  if (object_ != nullptr) napi_delete_reference(env, object_);
  object_ = nullptr;
  napi_close_handle_scope(env, scope);
}

std::span<uint8_t> SharedBuffers::copy(napi_env env, Region region) const {
  napi_value buffer = nullptr;
  void* data = nullptr;
  size_t size = 0;
  if (references_[region] == nullptr ||
      napi_get_reference_value(env, references_[region], &buffer) != napi_ok || buffer == nullptr ||
      napi_get_arraybuffer_info(env, buffer, &data, &size) != napi_ok || data == nullptr) {
    return {};
  }
  return {static_cast<uint8_t*>(data), std::min(size, native(region).size())};
}

void SharedBuffers::push(napi_env env, uint32_t rows) {
  napi_handle_scope scope;
  if (napi_open_handle_scope(env, &scope) != napi_ok) return;
  const std::span<uint8_t> sends = copy(env, kSends);
  const std::span<uint8_t> arena = copy(env, kArena);
  const std::span<uint8_t> counters = copy(env, kCountersRegion);
  rows = std::min(rows, kSendRows);
  const size_t length = rows * kSendStride * sizeof(int32_t);
  if (sends.size() >= length) memcpy(native_.sends.data(), sends.data(), length);
  if (counters.size() >= (kArenaRelease + 1) * sizeof(double)) {
    memcpy(&native_.counters[kArenaRelease], counters.data() + kArenaRelease * sizeof(double),
           sizeof(double));
  }
  int64_t previous_from = -1;
  int64_t previous_bytes = 0;
  for (uint32_t i = 0; i < rows; ++i) {
    const int64_t from = native_.sends[i * kSendStride + 1];
    const int64_t bytes = native_.sends[i * kSendStride + 2];
    // The same record goes to several peers in rows that follow each other.
    if (from == previous_from && bytes == previous_bytes) continue;
    previous_from = from;
    previous_bytes = bytes;
    if (from < 0 || bytes <= 0 || from + bytes > static_cast<int64_t>(arena.size())) continue;
    memcpy(native_.arena.data() + from, arena.data() + from, static_cast<size_t>(bytes));
  }
  napi_close_handle_scope(env, scope);
}

void SharedBuffers::pull(napi_env env, uint32_t events, uint32_t peers) {
  napi_handle_scope scope;
  if (napi_open_handle_scope(env, &scope) != napi_ok) return;
  const auto take = [&](Region region, size_t bytes) {
    const std::span<uint8_t> to = copy(env, region);
    if (!to.empty()) memcpy(to.data(), native(region).data(), std::min(bytes, to.size()));
  };
  take(kEvents, events * kEventStride * sizeof(int32_t));
  take(kCountersRegion, kArenaRelease * sizeof(double));
  take(kPeers, peers * kPeerStride * sizeof(double));
  napi_close_handle_scope(env, scope);
}

}  // namespace millrace::addon
