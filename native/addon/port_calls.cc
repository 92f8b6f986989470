#include <endian.h>
#include <errno.h>
#include <string.h>

#include <span>

#include "addon/arguments.h"
#include "addon/calls.h"
#include "addon/errors.h"
#include "soft/packet.h"
#include "soft/provider.h"

namespace millrace::addon {
namespace {

Napi::Value failed(Arguments& arguments, const base::Status& status) {
  throw_status(arguments.env(), status);
  return {};
}

/** Numbers of a row, as port-calls.ts has them. */
enum Row : size_t {
  kQueue,
  kTag,
  kOffset,
  kLength,
  kFrame,
  kFrameLength,
  kNetwork,
  kPorts,
  kStride
};
static_assert(kStride == 8);

/** Writes frames one behind the other, and a row for each. */
class Writer final : public transport::FrameSink {
 public:
  Writer(OpenPort& port, std::span<uint8_t> target, std::span<int32_t> rows)
      : port_(port), target_(target), rows_(rows), largest_(port.steering->frame_bytes()) {}

  bool ready() override {
    return target_.size() - at_ >= largest_ && rows_.size() - written_ >= kStride;
  }
  void take(const transport::SteeredFrame& frame) override {
    soft::PacketFields fields;
    soft::PacketLayout layout;
    soft::parse_frame(frame.bytes.data(), frame.bytes.size(), &fields, &layout);
    const bool udp = (fields.outer.layers & soft::kLayerUdp) != 0;
    if (udp && !(frame.checked || soft::checksums_are_ok(frame.bytes.data(), fields, layout))) {
      ++port_.malformed;  // as a UDP socket does
      return;
    }
    memcpy(target_.data() + at_, frame.bytes.data(), frame.bytes.size());
    int32_t* row = rows_.data() + written_;
    const auto start = static_cast<uint32_t>(at_);
    const auto bytes = static_cast<uint32_t>(frame.bytes.size());
    constexpr uint32_t kUdpBytes = 8;
    const auto put = [row](Row column, uint32_t value) {
      row[column] = static_cast<int32_t>(value);
    };
    put(kQueue, frame.queue);
    put(kTag, frame.tag);
    put(kOffset, udp ? start + layout.l4 + kUdpBytes : start);
    put(kLength, udp ? layout.l4_bytes - kUdpBytes : bytes);
    put(kFrame, start);
    put(kFrameLength, bytes);
    put(kNetwork, layout.ip != 0 ? start + layout.ip : 0);
    put(kPorts, static_cast<uint32_t>(be16toh(fields.outer.src_port)) << 16 |
                    be16toh(fields.outer.dst_port));
    written_ += kStride;
    at_ += (bytes + 7u) & ~size_t{7};
    if (at_ > target_.size()) at_ = target_.size();
  }
  size_t rows() const { return written_ / kStride; }
  /** Where the next frame would go. */
  size_t end() const { return at_; }
  void start(size_t offset) { at_ = offset; }

 private:
  OpenPort& port_;
  std::span<uint8_t> target_;
  std::span<int32_t> rows_;
  const size_t largest_;
  size_t at_ = 0;
  size_t written_ = 0;
};

}  // namespace

Napi::Value open_port(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "openPort");
  transport::SteeringOptions options;
  const Napi::Object object = arguments.object(0, "options");
  if (!arguments.ok()) return {};
  options.device = arguments.text(object, "device");
  options.interface = arguments.text(object, "interface");
  if (!arguments.ok()) return {};
  base::Result<std::unique_ptr<transport::Steering>> steering = transport::Steering::open(options);
  if (!steering.ok()) return failed(arguments, steering.status());
  const int32_t handle = arguments.environment().add(std::make_unique<OpenPort>(steering.take()));
  if (handle == 0) {
    return failed(arguments, base::Status::error(ENOBUFS, "open port",
                                                 "4095 members and ports are open in this thread"));
  }
  return Napi::Number::New(info.Env(), handle);
}

Napi::Value open_queue(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "openQueue");
  OpenPort* open = arguments.open<OpenPort>();
  const bool delivers = arguments.boolean(1, "delivers");
  if (!arguments.ok()) return {};
  const base::Result<uint32_t> queue = open->steering->open_queue(delivers);
  if (!queue.ok()) return failed(arguments, queue.status());
  return Napi::Number::New(info.Env(), queue.value());
}

Napi::Value close_queue(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "closeQueue");
  OpenPort* open = arguments.open<OpenPort>();
  const auto queue = static_cast<uint32_t>(arguments.integer(1, "queue", 0, kMaxUint32));
  if (!arguments.ok()) return {};
  const base::Status status = open->steering->close_queue(queue);
  if (!status.ok()) return failed(arguments, status);
  return info.Env().Undefined();
}

Napi::Value create_flow(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "createFlow");
  OpenPort* open = arguments.open<OpenPort>();
  const auto queue = static_cast<uint32_t>(arguments.integer(1, "queue", 0, kMaxUint32));
  const std::span<uint8_t> attr = arguments.bytes(2, "attr");
  if (!arguments.ok()) return {};
  const base::Result<uint32_t> flow = open->steering->create_flow(queue, attr);
  if (!flow.ok()) return failed(arguments, flow.status());
  return Napi::Number::New(info.Env(), flow.value());
}

Napi::Value destroy_flow(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "destroyFlow");
  OpenPort* open = arguments.open<OpenPort>();
  const auto flow = static_cast<uint32_t>(arguments.integer(1, "flow", 0, kMaxUint32));
  if (!arguments.ok()) return {};
  open->steering->destroy_flow(flow);
  return info.Env().Undefined();
}

Napi::Value read_flow(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "readFlow");
  OpenPort* open = arguments.open<OpenPort>();
  const auto flow = static_cast<uint32_t>(arguments.integer(1, "flow", 0, kMaxUint32));
  if (!arguments.ok()) return {};
  const transport::FlowCount count = open->steering->read_flow(flow);
  Napi::Object result = Napi::Object::New(info.Env());
  result.Set("packets", static_cast<double>(count.packets));
  result.Set("bytes", static_cast<double>(count.bytes));
  return result;
}

Napi::Value port_counters(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "portCounters");
  OpenPort* open = arguments.open<OpenPort>();
  if (open == nullptr) return {};
  soft::FeedCounters counters;
  // An adapter has no such counters of its own.
  if (base::Result<soft::FeedCounters> own = soft::feed_counters(open->steering->context());
      own.ok())
    counters = own.value();
  Napi::Object result = Napi::Object::New(info.Env());
  const auto set = [&result](const char* name, uint64_t value) {
    result.Set(name, static_cast<double>(value));
  };
  set("frames", counters.frames);
  set("ringDrops", counters.ring_drops);
  set("unmatched", counters.unmatched);
  set("fragments", counters.fragments);
  set("oversized", counters.oversized);
  set("cutOff", counters.cut_off);
  set("failed", counters.failed + open->steering->failed());
  set("malformed", open->malformed);
  set("socketLimit", counters.socket_limit);
  result.Set("stale", counters.stale);
  result.Set("unprivileged", counters.unprivileged);
  return result;
}

Napi::Value arm_port(const Napi::CallbackInfo& info) {
  Arguments arguments(info, "armPort");
  OpenPort* open = arguments.open<OpenPort>();
  constexpr int64_t kSecond = 1'000'000;
  const auto rest = static_cast<uint32_t>(arguments.integer(1, "rest", 0, kSecond));
  if (!arguments.ok()) return {};
  transport::Steering& steering = *open->steering;
  return Napi::Boolean::New(info.Env(), (rest != 0 && steering.rest(rest)) || steering.arm());
}

napi_value poll_port(napi_env env, napi_callback_info info) {
  napi_value arguments[4];
  size_t count = 4;
  void* data = nullptr;
  int32_t handle = 0;
  int32_t offset = 0;
  napi_get_cb_info(env, info, &count, arguments, nullptr, &data);
  if (napi_get_value_int32(env, arguments[0], &handle) != napi_ok)
    return throw_type(env, "pollPort", "handle", "a number");
  OpenPort* open = static_cast<Environment*>(data)->find<OpenPort>(handle);
  if (open == nullptr) return throw_closed(env, "pollPort");
  const auto array = [&](napi_value value, napi_typedarray_type wanted, size_t* length) -> void* {
    napi_typedarray_type type = napi_int8_array;
    void* bytes = nullptr;
    const bool good =
        napi_get_typedarray_info(env, value, &type, length, &bytes, nullptr, nullptr) == napi_ok &&
        type == wanted;
    return good ? bytes : nullptr;
  };
  size_t bytes = 0, numbers = 0;
  auto* target = static_cast<uint8_t*>(array(arguments[1], napi_uint8_array, &bytes));
  if (target == nullptr) return throw_type(env, "pollPort", "target", "a Uint8Array");
  if (napi_get_value_int32(env, arguments[2], &offset) != napi_ok)
    return throw_type(env, "pollPort", "offset", "a number");
  if (offset < 0 || static_cast<size_t>(offset) > bytes)
    return throw_range(env, "pollPort", "offset", "within the target");
  auto* rows = static_cast<int32_t*>(array(arguments[3], napi_int32_array, &numbers));
  if (rows == nullptr) return throw_type(env, "pollPort", "rows", "an Int32Array");
  Writer writer(*open, {target, bytes}, {rows, numbers});
  writer.start(static_cast<size_t>(offset));
  open->steering->poll(writer, static_cast<uint32_t>(numbers / kStride));
  napi_value result = nullptr;
  napi_create_uint32(env, static_cast<uint32_t>(writer.rows()), &result);
  return result;
}

}  // namespace millrace::addon
