#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace millrace::verbs {

/**
 * What a verbs implementation offers beside the inline data path: one entry for each exported
 * libibverbs call that this project uses, with exactly libibverbs' signature, return convention and
 * errno. The inline calls of <infiniband/verbs.h> (post_send, poll_cq, open_xrcd, create_srq_ex,
 * open_qp ...) dispatch through `context->ops` / `verbs_context` and need no entry.
 *
 * Tables are static, immutable and live for ever. All entries may be called from any thread.
 */
struct Provider {
  const char* name;
  /** Whether a device was made by this provider. Never null. */
  bool (*owns)(const ibv_device* device);

  ibv_device** (*get_device_list)(int* num_devices);
  void (*free_device_list)(ibv_device** list);
  const char* (*get_device_name)(ibv_device* device);
  __be64 (*get_device_guid)(ibv_device* device);
  int (*get_device_index)(ibv_device* device);
  ibv_context* (*open_device)(ibv_device* device);
  int (*close_device)(ibv_context* context);

  int (*query_device)(ibv_context* context, ibv_device_attr* attr);
  int (*query_port)(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attr);
  int (*query_gid)(ibv_context* context, uint8_t port, int index, ibv_gid* gid);
  int (*query_pkey)(ibv_context* context, uint8_t port, int index, __be16* pkey);
  int (*get_async_event)(ibv_context* context, ibv_async_event* event);
  void (*ack_async_event)(ibv_async_event* event);

  ibv_pd* (*alloc_pd)(ibv_context* context);
  int (*dealloc_pd)(ibv_pd* pd);
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* addr, size_t length, int access);
  ibv_mr* (*reg_mr_iova)(ibv_pd* pd, void* addr, size_t length, uint64_t iova, int access);
  ibv_mr* (*reg_mr_iova2)(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                          unsigned int access);
  int (*dereg_mr)(ibv_mr* mr);

  ibv_comp_channel* (*create_comp_channel)(ibv_context* context);
  int (*destroy_comp_channel)(ibv_comp_channel* channel);
  ibv_cq* (*create_cq)(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                       int comp_vector);
  int (*resize_cq)(ibv_cq* cq, int cqe);
  int (*destroy_cq)(ibv_cq* cq);
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context);
  void (*ack_cq_events)(ibv_cq* cq, unsigned int nevents);

  ibv_srq* (*create_srq)(ibv_pd* pd, ibv_srq_init_attr* attr);
  int (*modify_srq)(ibv_srq* srq, ibv_srq_attr* attr, int mask);
  int (*query_srq)(ibv_srq* srq, ibv_srq_attr* attr);
  int (*destroy_srq)(ibv_srq* srq);

  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attr);
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attr, int mask);
  int (*query_qp)(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init);
  int (*destroy_qp)(ibv_qp* qp);

  ibv_ah* (*create_ah)(ibv_pd* pd, ibv_ah_attr* attr);
  int (*destroy_ah)(ibv_ah* ah);
  int (*attach_mcast)(ibv_qp* qp, const ibv_gid* gid, uint16_t lid);
  int (*detach_mcast)(ibv_qp* qp, const ibv_gid* gid, uint16_t lid);

  // Entries that a provider may leave out: null means EOPNOTSUPP, which api_optional.cc answers.
  int (*query_gid_ex)(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t entry_size) = nullptr;
  ssize_t (*query_gid_table)(ibv_context* context, ibv_gid_entry* entries, size_t max_entries,
                             uint32_t flags, size_t entry_size) = nullptr;
  /** The MAC address and VLAN behind the GID in `attr`; Ethernet ports only. */
  int (*resolve_eth_l2_from_gid)(ibv_context* context, ibv_ah_attr* attr,
                                 uint8_t mac[ETHERNET_LL_SIZE], uint16_t* vid) = nullptr;
  /**
   * The way back to the sender of a received datagram. `grh` is the start of the receive buffer,
   * read only when the completion says that it holds a network header. 0, or -1 with errno.
   */
  int (*init_ah_from_wc)(ibv_context* context, uint8_t port, ibv_wc* wc, ibv_grh* grh,
                         ibv_ah_attr* attr) = nullptr;
  int (*rereg_mr)(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length,
                  int access) = nullptr;
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                           int access) = nullptr;
  ibv_context* (*import_device)(int fd) = nullptr;
  ibv_pd* (*import_pd)(ibv_context* context, uint32_t handle) = nullptr;
  void (*unimport_pd)(ibv_pd* pd) = nullptr;
  ibv_mr* (*import_mr)(ibv_pd* pd, uint32_t handle) = nullptr;
  void (*unimport_mr)(ibv_mr* mr) = nullptr;
  ibv_dm* (*import_dm)(ibv_context* context, uint32_t handle) = nullptr;
  void (*unimport_dm)(ibv_dm* dm) = nullptr;
  int (*fork_init)(void) = nullptr;
  ibv_fork_status (*is_fork_initialized)(void) = nullptr;
  ibv_qp_ex* (*qp_to_qp_ex)(ibv_qp* qp) = nullptr;
  int (*query_ece)(ibv_qp* qp, ibv_ece* ece) = nullptr;
  int (*set_ece)(ibv_qp* qp, ibv_ece* ece) = nullptr;
  int (*query_qp_data_in_order)(ibv_qp* qp, ibv_wr_opcode opcode, uint32_t flags) = nullptr;
};

/** Symbolic name of a completion status, e.g. "IBV_WC_RNR_RETRY_EXC_ERR"; never null. */
const char* wc_status_name(ibv_wc_status status);

}  // namespace millrace::verbs
