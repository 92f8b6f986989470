#include "verbs/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>

#include "soft/provider.h"
#include "verbs/open.h"
#include "verbs/owners.h"

namespace millrace::verbs {
namespace {

uint32_t count(int n) { return n > 0 ? static_cast<uint32_t>(n) : 0; }

uint32_t bytes_of(ibv_mtu mtu) { return mtu >= IBV_MTU_256 ? 128u << mtu : 0; }

/** A flag is a promise; whether it holds shows when it is tried (a flag of a provider whose
 * library has no XRC is one that does not). */
bool has_xrc(ibv_context* context, const ibv_device_attr& attr) {
  if ((attr.device_cap_flags & IBV_DEVICE_XRC) == 0) return false;
  ibv_xrcd_init_attr init = {};
  init.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  init.fd = -1;
  init.oflags = O_CREAT;
  return static_cast<bool>(XrcdPtr(ibv_open_xrcd(context, &init)));
}

PortProbe probe_port(ibv_context* context, uint8_t number) {
  PortProbe port;
  port.number = number;
  ibv_port_attr attr = {};
  if (ibv_query_port(context, number, &attr) != 0) return port;
  port.state = attr.state;
  port.ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.lid = attr.lid;
  port.mtu_bytes = bytes_of(attr.active_mtu);
  port.max_mtu_bytes = bytes_of(attr.max_mtu);
  port.gids = list_gids(context, number);
  const auto chosen = choose_gid(context, number);
  if (chosen.ok()) port.chosen_gid = static_cast<int32_t>(chosen.value().index);
  return port;
}

}  // namespace

base::Result<Capabilities> capabilities_of(ibv_context* context) {
  ibv_device_attr attr = {};
  const int error = ibv_query_device(context, &attr);
  if (error != 0) return base::Status::error(error, "ibv_query_device", strerror(error));
  Capabilities can;
  const auto transport = context->device->transport_type;
  can.rc = transport == IBV_TRANSPORT_IB || transport == IBV_TRANSPORT_IWARP;
  can.xrc = has_xrc(context, attr);
  can.basic_srq = attr.max_srq > 0;
  can.ud_multicast = attr.max_mcast_grp > 0;
  can.memory_windows = attr.max_mw > 0;
  can.atomics = attr.atomic_cap != IBV_ATOMIC_NONE;
  // Both were bits of the plain query before there was an extended one; the header has no name for
  // the first as a plain bit.
  can.flow_steering = (attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING) != 0;
  ibv_device_attr_ex extended = {};
  can.raw_packet =
      (ibv_query_device_ex(context, nullptr, &extended) == 0 && extended.raw_packet_caps != 0) ||
      attr.max_raw_ethy_qp > 0;
  can.max_qp = count(attr.max_qp);
  can.max_qp_wr = count(attr.max_qp_wr);
  can.max_sge = count(attr.max_sge);
  can.max_cq = count(attr.max_cq);
  can.max_cqe = count(attr.max_cqe);
  can.max_mr = count(attr.max_mr);
  can.max_pd = count(attr.max_pd);
  can.max_srq = count(attr.max_srq);
  can.max_srq_wr = count(attr.max_srq_wr);
  can.max_mcast_groups = count(attr.max_mcast_grp);
  can.max_rd_atomic = count(attr.max_qp_rd_atom);
  can.max_mr_size = attr.max_mr_size;
  return can;
}

std::string DeviceProbe::missing() const {
  if (!status.ok()) return status.detail;
  if (!can.xrc && !(can.rc && can.basic_srq))
    return can.rc ? "it has neither XRC nor shared receive queues" : "it has no RC queue pairs";
  if (ports.empty()) return "it has no port";
  const PortProbe& port = ports.front();
  if (port.state != IBV_PORT_ACTIVE)
    return base::format("its port %u is %s", port.number, ibv_port_state_str(port.state));
  if (port.ethernet && port.chosen_gid < 0) return "its port has no GID to be addressed by";
  return {};
}

DeviceProbe probe_device(ibv_context* context) {
  DeviceProbe probe;
  probe.name = ibv_get_device_name(context->device);
  probe.provider = provider_of(context->device)->name;
  auto can = capabilities_of(context);
  if (!can.ok()) {
    probe.status = can.status();
    return probe;
  }
  probe.can = can.take();
  ibv_device_attr attr = {};
  (void)ibv_query_device(context, &attr);
  probe.guid = be64toh(attr.node_guid);
  probe.firmware.assign(attr.fw_ver, strnlen(attr.fw_ver, sizeof(attr.fw_ver)));
  probe.vendor = attr.vendor_id;
  probe.part = attr.vendor_part_id;
  for (uint8_t i = 1; i <= attr.phys_port_cnt; ++i) probe.ports.push_back(probe_port(context, i));
  return probe;
}

base::Result<std::vector<DeviceProbe>> probe_devices() {
  int devices = 0;
  ibv_device** const list = ibv_get_device_list(&devices);
  if (list == nullptr) {
    const int error = errno;
    return base::Status::error(error, "list RDMA devices", strerror(error));
  }
  std::vector<DeviceProbe> probes;
  for (int i = 0; i < devices; ++i) {
    errno = 0;
    const ContextPtr context(ibv_open_device(list[i]));
    if (context) {
      probes.push_back(probe_device(context.get()));
      continue;
    }
    const int error = errno != 0 ? errno : EIO;
    DeviceProbe probe;
    probe.name = ibv_get_device_name(list[i]);
    probe.provider = provider_of(list[i])->name;
    // The software device keeps the whole reason of this thread's last failure.
    probe.status = soft::provider()->owns(list[i])
                       ? soft::last_error()
                       : base::Status::error(error, "ibv_open_device", strerror(error));
    probes.push_back(std::move(probe));
  }
  ibv_free_device_list(list);
  return probes;
}

uint64_t memlock_limit() {
  rlimit limit = {};
  const bool none = getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
  return none ? ~uint64_t{0} : limit.rlim_cur;
}

}  // namespace millrace::verbs
