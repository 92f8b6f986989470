#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/gid.h"

namespace millrace::verbs {

/** What one port of a device is. */
struct PortProbe {
  uint8_t number = 1;
  ibv_port_state state = IBV_PORT_NOP;
  bool ethernet = false;
  uint16_t lid = 0;
  uint32_t mtu_bytes = 0;      ///< active
  uint32_t max_mtu_bytes = 0;  ///< what the port could have
  std::vector<Gid> gids;
  int32_t chosen_gid = -1;  ///< index of the GID that lanes use; -1 when there is none
};

/** What a device can do, as asked of it. */
struct Capabilities {
  bool rc = false;            ///< any RDMA device in our sense has it; an EFA has not
  bool xrc = false;           ///< told, and an XRC domain could be opened
  bool basic_srq = false;     ///< max_srq > 0
  bool ud_multicast = false;  ///< max_mcast_grp > 0
  bool raw_packet = false;    ///< RAW_PACKET QPs
  bool flow_steering = false;
  bool memory_windows = false;
  bool atomics = false;
  uint32_t max_qp = 0, max_qp_wr = 0, max_sge = 0, max_cq = 0, max_cqe = 0, max_mr = 0, max_pd = 0,
           max_srq = 0, max_srq_wr = 0, max_mcast_groups = 0, max_rd_atomic = 0;
  uint64_t max_mr_size = 0;
};

/** A device, looked at. */
struct DeviceProbe {
  std::string name;
  std::string provider;  ///< "soft" or "system"
  base::Status status;   ///< why it could not be opened or asked; then only the name is there
  uint64_t guid = 0;
  std::string firmware;
  uint32_t vendor = 0, part = 0;
  Capabilities can;
  std::vector<PortProbe> ports;

  /** Whether lanes can be made on it now, else what is missing, in words. */
  std::string missing() const;
};

/** What capabilities and limits an open device has. Opens an XRC domain of its own to see whether
 * it may. Errors: the errno of ibv_query_device. */
base::Result<Capabilities> capabilities_of(ibv_context* context);

/** Looks at a device through an open context. Any thread. */
DeviceProbe probe_device(ibv_context* context);

/** All devices of all providers, each opened for the moment, the software device included. A device
 * that cannot be opened has its reason. Errors: what listing them fails with. Any thread. */
base::Result<std::vector<DeviceProbe>> probe_devices();

/** The soft limit of RLIMIT_MEMLOCK in bytes: what a process without privileges may register;
 * ~0 when there is none. */
uint64_t memlock_limit();

}  // namespace millrace::verbs
