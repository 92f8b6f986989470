// Exported libibverbs calls that a provider may leave out, and those that can be made of others.
#include <errno.h>
#include <infiniband/verbs.h>

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

}  // namespace
}  // namespace millrace::verbs

using millrace::verbs::of;
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

int ibv_init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* wc, ibv_grh* grh,
                        ibv_ah_attr* attr) {
  const auto call = of(context).init_ah_from_wc;
  if (call != nullptr) return call(context, port, wc, grh, attr);
  errno = EOPNOTSUPP;
  return -1;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port) {
  ibv_ah_attr attr;
  if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr) != 0) return nullptr;
  return ibv_create_ah(pd, &attr);
}

}  // extern "C"
