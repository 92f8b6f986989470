#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <string.h>

#include <algorithm>

#include "base/clock.h"
#include "soft/cq_ex.h"
#include "soft/device.h"
#include "soft/error.h"
#include "soft/port.h"
#include "soft/rss.h"

// What a device says about itself. Zero means that it has none of it: no on-demand paging, no
// segmentation offload, no tag matching, no device memory.

namespace millrace::soft {
namespace {

constexpr uint32_t kVendor = 0x02736F;
/** Timestamps and the raw clock are nanoseconds of CLOCK_MONOTONIC; the unit here is kHz. */
constexpr uint64_t kClockKhz = 1'000'000;

void fill_device(const Context& context, ibv_device_attr* attr) {
  *attr = {};
  strcpy(attr->fw_ver, "1.0");
  attr->node_guid = htobe64(device_guid(context.device));
  attr->sys_image_guid = attr->node_guid;
  attr->max_mr_size = ~uint64_t{0} >> 1;
  attr->page_size_cap = ~uint64_t{0xFFF};
  attr->vendor_id = kVendor;
  attr->vendor_part_id = 1;
  attr->max_qp = kQps - kTargetQps;
  attr->max_qp_wr = kMaxSrqWr;
  attr->device_cap_flags = device_cap_flags(context);
  attr->max_sge = std::min(kMaxSendSge, kMaxRecvSge);
  attr->max_sge_rd = kMaxSendSge;
  attr->max_cq = 4096;
  attr->max_cqe = kMaxCqe;
  attr->max_mr = kMrs;
  attr->max_mw = kMrs;
  attr->max_pd = kPds;
  attr->max_qp_rd_atom = 16;
  attr->max_res_rd_atom = 16 * kQps;
  attr->max_qp_init_rd_atom = 16;
  attr->atomic_cap = IBV_ATOMIC_HCA;
  attr->max_srq = kSrqs;
  attr->max_srq_wr = kMaxSrqWr;
  attr->max_srq_sge = kMaxSrqSge;
  attr->max_ah = 1 << 20;
  attr->max_mcast_grp = kGroups;
  attr->max_mcast_qp_attach = kGroups;
  attr->max_total_mcast_qp_attach = kGroups;
  if (context.link == Link::kEthernet) attr->max_raw_ethy_qp = kQps - kTargetQps;
  attr->max_pkeys = 1;
  attr->local_ca_ack_delay = 0;
  attr->phys_port_cnt = kPorts;
}

}  // namespace

unsigned device_cap_flags(const Context& context) {
  unsigned offered = context.xrc ? unsigned{IBV_DEVICE_XRC} : 0u;
  if (context.link == Link::kEthernet)
    offered |= unsigned{IBV_DEVICE_MANAGED_FLOW_STEERING} | unsigned{IBV_DEVICE_RAW_IP_CSUM};
  return offered | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_CURR_QP_STATE_MOD |
         IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
}

int query_device(ibv_context* handle, ibv_device_attr* attr) {
  fill_device(Context::of(handle), attr);
  return 0;
}

int query_device_ex(ibv_context* handle, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t size) {
  constexpr const char* kWhat = "query a device";
  if (input != nullptr && input->comp_mask != 0)
    return fail(EINVAL, kWhat, base::format("comp_mask is %#x and must be 0", input->comp_mask));
  if (size < sizeof(ibv_device_attr))
    return fail(EINVAL, kWhat, base::format("%zu bytes are too few for the answer", size));
  ibv_device_attr_ex full = {};
  fill_device(Context::of(handle), &full.orig_attr);
  full.completion_timestamp_mask = ~uint64_t{0};
  full.hca_core_clock = kClockKhz;
  full.device_cap_flags_ex = full.orig_attr.device_cap_flags;
  full.phys_port_cnt_ex = kPorts;
  if (Context::of(handle).link == Link::kEthernet) {
    full.raw_packet_caps = IBV_RAW_PACKET_CAP_IP_CSUM;
    full.max_wq_type_rq = kQps - kTargetQps;
    full.rss_caps.supported_qpts = 1u << IBV_QPT_RAW_PACKET;
    full.rss_caps.max_rwq_indirection_tables = kSpreads;
    full.rss_caps.max_rwq_indirection_table_size = kSpreadQueues;
    full.rss_caps.rx_hash_fields_mask = kHashFields;
    full.rss_caps.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
  }
  full.cq_mod_caps.max_cq_count = kMaxModerationCount;
  full.cq_mod_caps.max_cq_period = kMaxModerationPeriodUs;
  memset(static_cast<void*>(attr), 0, size);
  memcpy(static_cast<void*>(attr), &full, std::min(size, sizeof(full)));
  return 0;
}

int query_rt_values(ibv_context*, ibv_values_ex* values) {
  const uint32_t asked = values->comp_mask;
  values->comp_mask = 0;
  if ((asked & IBV_VALUES_MASK_RAW_CLOCK) != 0) {
    // As hardware does it: the counter that completions are stamped with, whole in tv_nsec.
    values->raw_clock.tv_sec = 0;
    values->raw_clock.tv_nsec = static_cast<long>(base::now_ns());
    values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  }
  return 0;
}

}  // namespace millrace::soft
