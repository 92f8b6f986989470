#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "soft/device.h"
#include "soft/port.h"

namespace millrace::soft {

/** Where a datagram goes: resolved once, when the address is given. */
struct Route {
  bool multicast = false;
  uint32_t device = kDevices;  ///< unicast: the destination's number; kDevices: nobody has it
  ibv_gid_type type = IBV_GID_TYPE_IB;  ///< of the source GID; how the packet looks on the wire
};

/** An address handle: the attributes as given, and what they mean. Immutable. */
struct Ah {
  ibv_ah ah = {};
  ibv_ah_attr attr = {};
  Route route;
  static const Ah& of(const ibv_ah* handle) { return *reinterpret_cast<const Ah*>(handle); }
};

/**
 * Checks an address as the kernel does (port, source GID, a global route on Ethernet) and finds
 * where it leads. An address that nobody has is fine: what is sent there is lost. EINVAL with the
 * reason in soft::last_error().
 */
int check_address(const Context& context, const char* what, const ibv_ah_attr& attr);
Route route_of(const Context& context, const ibv_ah_attr& attr);

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attr);
int destroy_ah(ibv_ah* ah);
/**
 * The address that answers a received datagram, from its completion and the 40 bytes in front of
 * it. 0, or -1 with errno (EINVAL: not a GRH; ENOENT: it was sent to a GID that the port has not).
 */
int init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* wc, ibv_grh* grh,
                    ibv_ah_attr* attr);
/** The Ethernet address behind a global address. 0, or -1 with errno. No VLANs: `vid` is 0xFFFF. */
int resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attr, uint8_t mac[6], uint16_t* vid);

}  // namespace millrace::soft
