// Exported libibverbs calls that a provider may leave out, and those that can be made of others.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <string.h>

#include "verbs/open.h"
#include "verbs/provider.h"

namespace millrace::verbs {
namespace {

const Provider& of(const ibv_context* context) { return *provider_of(context->device); }

/** Refuses a call that returns a pointer. */
std::nullptr_t unsupported() {
  errno = EOPNOTSUPP;
  return nullptr;
}

/**
 * The two ends of a received datagram as GIDs. The first 40 bytes of the buffer are a GRH (or IPv6
 * header, which looks the same), or 20 unused bytes and an IPv4 header (RoCE v2).
 */
struct Ends {
  ibv_gid from = {};
  ibv_gid to = {};
  uint32_t flow_label = 0;
  uint8_t traffic_class = 0;
};

bool read_ends(const ibv_grh* grh, Ends* ends) {
  const uint32_t first = ntohl(grh->version_tclass_flow);
  if (first >> 28 == 6) {
    ends->from = grh->sgid;
    ends->to = grh->dgid;
    ends->flow_label = first & 0xFFFFF;
    ends->traffic_class = static_cast<uint8_t>(first >> 20);
    return true;
  }
  uint8_t ipv4[20];
  memcpy(ipv4, reinterpret_cast<const uint8_t*>(grh) + 20, sizeof(ipv4));
  if (ipv4[0] >> 4 != 4) return false;
  const auto mapped = [](const uint8_t* address, ibv_gid* gid) {
    gid->raw[10] = gid->raw[11] = 0xFF;
    memcpy(gid->raw + 12, address, 4);
  };
  mapped(ipv4 + 12, &ends->from);
  mapped(ipv4 + 16, &ends->to);
  ends->traffic_class = ipv4[1];
  return true;
}

/** The port's index of a GID, -1 if it is not one of the port's. */
int index_of(ibv_context* context, uint8_t port, const ibv_gid& wanted) {
  ibv_port_attr attr = {};
  if (ibv_query_port(context, port, &attr) != 0) return -1;
  for (int i = 0; i < attr.gid_tbl_len; ++i) {
    ibv_gid gid;
    if (ibv_query_gid(context, port, i, &gid) == 0 && memcmp(&gid, &wanted, sizeof(gid)) == 0)
      return i;
  }
  return -1;
}

}  // namespace
}  // namespace millrace::verbs

using millrace::verbs::Ends;
using millrace::verbs::index_of;
using millrace::verbs::of;
using millrace::verbs::read_ends;
using millrace::verbs::unsupported;

extern "C" {

int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t entry_size) {
  const auto call = of(context).query_gid_ex;
  return call != nullptr ? call(context, port, index, entry, flags, entry_size) : EOPNOTSUPP;
}
ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t max_entries,
                             uint32_t flags, size_t entry_size) {
  const auto call = of(context).query_gid_table;
  return call != nullptr ? call(context, entries, max_entries, flags, entry_size) : -EOPNOTSUPP;
}

/** The index of a P_Key (network order), -1 with errno EINVAL if the port has no such key. */
int ibv_get_pkey_index(ibv_context* context, uint8_t port, __be16 pkey) {
  ibv_port_attr attr = {};
  if (ibv_query_port(context, port, &attr) == 0) {
    for (int i = 0; i < attr.pkey_tbl_len; ++i) {
      __be16 found = 0;
      if (ibv_query_pkey(context, port, i, &found) == 0 && found == pkey) return i;
    }
  }
  errno = EINVAL;
  return -1;
}

int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length, int access) {
  const auto call = of(mr->context).rereg_mr;
  if (call != nullptr) return call(mr, flags, pd, addr, length, access);
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;  // nothing was changed
}
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                          int access) {
  const auto call = of(pd->context).reg_dmabuf_mr;
  return call != nullptr ? call(pd, offset, length, iova, fd, access) : unsupported();
}

ibv_pd* ibv_import_pd(ibv_context* context, uint32_t handle) {
  const auto call = of(context).import_pd;
  return call != nullptr ? call(context, handle) : unsupported();
}
void ibv_unimport_pd(ibv_pd* pd) { of(pd->context).unimport_pd(pd); }
ibv_mr* ibv_import_mr(ibv_pd* pd, uint32_t handle) {
  const auto call = of(pd->context).import_mr;
  return call != nullptr ? call(pd, handle) : unsupported();
}
void ibv_unimport_mr(ibv_mr* mr) { of(mr->context).unimport_mr(mr); }
ibv_dm* ibv_import_dm(ibv_context* context, uint32_t handle) {
  const auto call = of(context).import_dm;
  return call != nullptr ? call(context, handle) : unsupported();
}
void ibv_unimport_dm(ibv_dm* dm) { of(dm->context).unimport_dm(dm); }

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  const auto call = of(qp->context).qp_to_qp_ex;
  return call != nullptr ? call(qp) : nullptr;
}
int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  const auto call = of(qp->context).query_ece;
  return call != nullptr ? call(qp, ece) : EOPNOTSUPP;
}
int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  const auto call = of(qp->context).set_ece;
  return call != nullptr ? call(qp, ece) : EOPNOTSUPP;
}
int ibv_query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode opcode, uint32_t flags) {
  const auto call = of(qp->context).query_qp_data_in_order;
  return call != nullptr ? call(qp, opcode, flags) : 0;  // no promise
}

int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attr,
                                uint8_t mac[ETHERNET_LL_SIZE], uint16_t* vid) {
  const auto call = of(context).resolve_eth_l2_from_gid;
  return call != nullptr ? call(context, attr, mac, vid) : EOPNOTSUPP;
}

/**
 * The way back to the sender of a received datagram. `grh` is the start of the receive buffer, read
 * only when the completion says that it holds a GRH. EINVAL: it holds none of the kinds known, or
 * was addressed to a GID that the port has no more.
 */
int ibv_init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* wc, ibv_grh* grh,
                        ibv_ah_attr* attr) {
  *attr = {};
  attr->dlid = wc->slid;
  attr->sl = wc->sl;
  attr->src_path_bits = wc->dlid_path_bits;
  attr->port_num = port;
  if ((wc->wc_flags & IBV_WC_GRH) == 0) return 0;
  Ends ends;
  const int index = read_ends(grh, &ends) ? index_of(context, port, ends.to) : -1;
  if (index < 0) {
    errno = EINVAL;
    return -1;
  }
  attr->is_global = 1;
  attr->grh.dgid = ends.from;
  attr->grh.sgid_index = static_cast<uint8_t>(index);
  attr->grh.flow_label = ends.flow_label;
  attr->grh.traffic_class = ends.traffic_class;
  attr->grh.hop_limit = 0xFF;
  return 0;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port) {
  ibv_ah_attr attr;
  if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr) != 0) return nullptr;
  return ibv_create_ah(pd, &attr);
}

}  // extern "C"
