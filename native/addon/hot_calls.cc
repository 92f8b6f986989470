#include <node_api.h>

#include <cstdint>
#include <span>

#include "addon/calls.h"
#include "addon/hot_arguments.h"

namespace millrace::addon {

napi_value flush(napi_env env, napi_callback_info info) {
  HotArguments<2> arguments(env, info, "flush");
  const auto rows = static_cast<uint32_t>(arguments.integer(1, "rows", 0, transport::kSendRows));
  if (!arguments.ok()) return nullptr;
  OpenMember& open = arguments.member();
  if (open.buffers.copied()) open.buffers.push(env, rows);
  const uint32_t bits = open.member->flush(rows);
  if (open.buffers.copied()) open.buffers.pull(env, 0, open.peers);
  return make_number(env, bits);
}

napi_value poll(napi_env env, napi_callback_info info) {
  HotArguments<4> arguments(env, info, "poll");
  const std::span<uint8_t> target = arguments.bytes(1, "target");
  const auto offset =
      static_cast<size_t>(arguments.integer(2, "offset", 0, static_cast<int64_t>(target.size())));
  const auto frames = static_cast<uint32_t>(arguments.integer(3, "maxFrames", 0, INT32_MAX));
  if (!arguments.ok()) return nullptr;
  OpenMember& open = arguments.member();
  const uint32_t rows = open.member->poll(target, offset, frames);
  if (open.buffers.copied()) open.buffers.pull(env, rows, open.peers);
  return make_number(env, rows);
}

napi_value linger(napi_env env, napi_callback_info info) {
  HotArguments<2> arguments(env, info, "linger");
  const auto micros = static_cast<uint32_t>(arguments.integer(1, "micros", 0, INT32_MAX));
  if (!arguments.ok()) return nullptr;
  return make_number(env, static_cast<uint32_t>(arguments.member().member->linger(micros)));
}

napi_value arm(napi_env env, napi_callback_info info) {
  HotArguments<1> arguments(env, info, "arm");
  if (!arguments.ok()) return nullptr;
  return make_boolean(env, arguments.member().member->arm());
}

}  // namespace millrace::addon
