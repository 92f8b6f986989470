#include "soft/ah.h"

#include <errno.h>
#include <string.h>

#include "soft/error.h"
#include "soft/grh.h"

namespace millrace::soft {

int check_address(const Context& context, const char* what, const ibv_ah_attr& attr) {
  if (attr.port_num != kPorts)
    return fail(EINVAL, what, base::format("port_num is %u; there is port 1", attr.port_num));
  if (attr.is_global != 0) {
    if (attr.grh.sgid_index >= gid_count(context.link)) {
      return fail(EINVAL, what,
                  base::format("sgid_index is %u; the port's table has %u entries",
                               attr.grh.sgid_index, gid_count(context.link)));
    }
  } else if (context.link == Link::kEthernet) {
    return fail(EINVAL, what,
                "is_global is 0; an Ethernet port needs a GID and a sgid_index, it has no LIDs");
  } else if (attr.dlid == 0 || attr.dlid == kPermissiveLid) {
    return fail(EINVAL, what, base::format("dlid is %#x, which names no port", attr.dlid));
  } else if (attr.dlid >= kFirstMulticastLid) {
    return fail(
        EINVAL, what,
        base::format("dlid %#x is a multicast group, which needs its GID (is_global)", attr.dlid));
  }
  if (attr.sl > 15) return fail(EINVAL, what, base::format("sl is %u, at most 15", attr.sl));
  return 0;
}

Route route_of(const Context& context, const ibv_ah_attr& attr) {
  Route route;
  if (attr.is_global == 0) {
    route.device = device_of_lid(attr.dlid);
    return route;
  }
  route.type = gid_type(context.link, attr.grh.sgid_index);
  route.multicast = is_multicast(attr.grh.dgid);
  if (!route.multicast) route.device = device_of_gid(context.link, attr.grh.dgid);
  return route;
}

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  constexpr const char* kWhat = "create an address handle";
  if (forked()) return fail_null(EPERM, kWhat, "this process was forked");
  Context& context = Context::of(pd->context);
  if (check_address(context, kWhat, *attr) != 0) return nullptr;
  Ah* ah = new Ah;
  ah->attr = *attr;
  ah->route = route_of(context, *attr);
  ah->ah.context = pd->context;
  ah->ah.pd = pd;
  ah->ah.handle = static_cast<uint32_t>(context.process->next_number());
  Pd::of(pd).users.fetch_add(1);
  context.objects.fetch_add(1, std::memory_order_relaxed);
  return &ah->ah;
}

int destroy_ah(ibv_ah* handle) {
  if (forked()) return fail(EPERM, "destroy an address handle", "this process was forked");
  Pd::of(handle->pd).users.fetch_sub(1);
  Context::of(handle->context).objects.fetch_sub(1, std::memory_order_relaxed);
  delete &Ah::of(handle);
  return 0;
}

int init_ah_from_wc(ibv_context* handle, uint8_t port, ibv_wc* wc, ibv_grh* grh,
                    ibv_ah_attr* attr) {
  constexpr const char* kWhat = "find the address of a completion";
  const Context& context = Context::of(handle);
  *attr = {};
  attr->dlid = wc->slid;
  attr->sl = wc->sl;
  attr->src_path_bits = wc->dlid_path_bits;
  attr->port_num = port;
  if ((wc->wc_flags & IBV_WC_GRH) == 0) return 0;
  NetworkHeader header;
  uint8_t bytes[kGrhBytes];
  memcpy(bytes, grh, kGrhBytes);
  if (!read_network_header(bytes, &header)) {
    (void)fail(EINVAL, kWhat, "the 40 bytes are neither a GRH nor an IPv4 header");
    return -1;
  }
  if (context.link == Link::kInfiniband) header.type = IBV_GID_TYPE_IB;
  int index = find_gid(context.link, context.device, header.destination, header.type);
  if (index < 0 && is_multicast(header.destination)) {
    // Sent to a group: the answer comes from the own GID that looks like the sender's.
    for (uint32_t i = 0; i < gid_count(context.link) && index < 0; ++i) {
      const bool same_kind = is_ipv4_mapped(port_gid(context.link, context.device, i)) ==
                             is_ipv4_mapped(header.source);
      if (same_kind && gid_type(context.link, i) == header.type) index = static_cast<int>(i);
    }
  }
  if (index < 0) {
    (void)fail(ENOENT, kWhat, "the datagram was sent to a GID that this port does not have");
    return -1;
  }
  attr->is_global = 1;
  attr->grh.dgid = header.source;
  attr->grh.sgid_index = static_cast<uint8_t>(index);
  attr->grh.flow_label = header.flow_label;
  attr->grh.traffic_class = header.traffic_class;
  attr->grh.hop_limit = 0xFF;
  return 0;
}

int resolve_eth_l2_from_gid(ibv_context* handle, ibv_ah_attr* attr, uint8_t mac[6], uint16_t* vid) {
  const Context& context = Context::of(handle);
  if (!mac_of_gid(context.link, attr->grh.dgid, mac)) {
    (void)fail(EHOSTUNREACH, "find an Ethernet address", "no port of the fabric has that GID");
    return -1;
  }
  if (vid != nullptr) *vid = 0xFFFF;
  return 0;
}

}  // namespace millrace::soft
