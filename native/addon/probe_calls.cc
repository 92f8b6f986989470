#include <cmath>
#include <limits>

#include "addon/arguments.h"
#include "addon/calls.h"
#include "addon/errors.h"
#include "verbs/open.h"
#include "verbs/probe.h"
#include "verbs/system.h"

/** What devices there are and what they can do: for `millrace doctor`. */
namespace millrace::addon {
namespace {

using verbs::DeviceProbe;
using verbs::PortProbe;

/** A size or limit; those of "as much as you like" (all ones) as Infinity. */
double limit_of(uint64_t value) {
  return value == ~uint64_t{0} ? std::numeric_limits<double>::infinity()
                               : static_cast<double>(value);
}

Napi::Object to_object(Napi::Env env, const PortProbe& port) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("number", static_cast<uint32_t>(port.number));
  object.Set("state", ibv_port_state_str(port.state));
  object.Set("active", port.state == IBV_PORT_ACTIVE);
  object.Set("link", port.ethernet ? "ethernet" : "infiniband");
  object.Set("lid", static_cast<uint32_t>(port.lid));
  object.Set("mtu", port.mtu_bytes);
  object.Set("maxMtu", port.max_mtu_bytes);
  object.Set("gid", port.chosen_gid);
  Napi::Array gids = Napi::Array::New(env, port.gids.size());
  for (uint32_t i = 0; i < port.gids.size(); ++i) {
    const verbs::Gid& gid = port.gids[i];
    Napi::Object entry = Napi::Object::New(env);
    entry.Set("index", gid.index);
    entry.Set("gid", verbs::gid_text(gid.gid));
    entry.Set("kind", verbs::gid_kind_name(gid.kind));
    gids.Set(i, entry);
  }
  object.Set("gids", gids);
  return object;
}

Napi::Object to_object(Napi::Env env, const verbs::Capabilities& can) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("rc", can.rc);
  object.Set("xrc", can.xrc);
  object.Set("basicSrq", can.basic_srq);
  object.Set("udMulticast", can.ud_multicast);
  object.Set("rawPacket", can.raw_packet);
  object.Set("flowSteering", can.flow_steering);
  object.Set("memoryWindows", can.memory_windows);
  object.Set("atomics", can.atomics);
  return object;
}

Napi::Object limits(Napi::Env env, const verbs::Capabilities& can) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("qp", can.max_qp);
  object.Set("qpWr", can.max_qp_wr);
  object.Set("sge", can.max_sge);
  object.Set("cq", can.max_cq);
  object.Set("cqe", can.max_cqe);
  object.Set("mr", can.max_mr);
  object.Set("mrBytes", limit_of(can.max_mr_size));
  object.Set("pd", can.max_pd);
  object.Set("srq", can.max_srq);
  object.Set("srqWr", can.max_srq_wr);
  object.Set("multicastGroups", can.max_mcast_groups);
  object.Set("rdAtomic", can.max_rd_atomic);
  return object;
}

Napi::Object to_object(Napi::Env env, const DeviceProbe& device) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("name", device.name);
  object.Set("provider", device.provider);
  const std::string missing = device.missing();
  object.Set("missing", missing);
  object.Set("opened", device.status.ok());
  object.Set("guid", base::format("%016llx", static_cast<unsigned long long>(device.guid)));
  object.Set("firmware", device.firmware);
  object.Set("vendor", device.vendor);
  object.Set("part", device.part);
  object.Set("lanes", device.can.xrc                          ? "xrc"
                      : device.can.rc && device.can.basic_srq ? "rc"
                                                              : "none");
  object.Set("can", to_object(env, device.can));
  object.Set("limits", limits(env, device.can));
  Napi::Array ports = Napi::Array::New(env, device.ports.size());
  for (uint32_t i = 0; i < device.ports.size(); ++i) ports.Set(i, to_object(env, device.ports[i]));
  object.Set("ports", ports);
  return object;
}

}  // namespace

Napi::Value probe(const Napi::CallbackInfo& info) {
  const auto devices = verbs::probe_devices();
  if (!devices.ok()) {
    throw_status(info.Env(), devices.status());
    return {};
  }
  Napi::Object result = Napi::Object::New(info.Env());
  const verbs::SystemLibrary& library = verbs::system_library();
  result.Set("library", library.path);
  result.Set("libraryProblem", library.problem);
  result.Set("noSystemDevice", verbs::why_no_system_device());
  result.Set("memlock", limit_of(verbs::memlock_limit()));
  const std::vector<DeviceProbe>& all = devices.value();
  Napi::Array list = Napi::Array::New(info.Env(), all.size());
  for (uint32_t i = 0; i < all.size(); ++i) list.Set(i, to_object(info.Env(), all[i]));
  result.Set("devices", list);
  return result;
}

}  // namespace millrace::addon
