#include "soft/provider.h"

#include <errno.h>
#include <unistd.h>

#include "soft/ah.h"
#include "soft/channel.h"
#include "soft/cq.h"
#include "soft/device.h"
#include "soft/error.h"
#include "soft/fabric.h"
#include "soft/import.h"
#include "soft/mcast.h"
#include "soft/mr.h"
#include "soft/process.h"
#include "soft/qp.h"
#include "soft/reap.h"
#include "soft/srq.h"

namespace millrace::soft {

namespace {

constexpr verbs::Provider kProvider = {
    .name = "soft",
    .owns = owns_device,
    .get_device_list = get_device_list,
    .free_device_list = free_device_list,
    .get_device_name = get_device_name,
    .get_device_guid = get_device_guid,
    .get_device_index = get_device_index,
    .open_device = open_device,
    .close_device = close_device,
    .query_device = query_device,
    .query_port = query_port,
    .query_gid = query_gid,
    .query_pkey = query_pkey,
    .get_async_event = get_async_event,
    .ack_async_event = ack_async_event,
    .alloc_pd = alloc_pd,
    .dealloc_pd = dealloc_pd,
    .reg_mr = reg_mr,
    .reg_mr_iova = reg_mr_iova,
    .reg_mr_iova2 = reg_mr_iova2,
    .dereg_mr = dereg_mr,
    .create_comp_channel = create_comp_channel,
    .destroy_comp_channel = destroy_comp_channel,
    .create_cq = create_cq,
    .resize_cq = resize_cq,
    .destroy_cq = destroy_cq,
    .get_cq_event = get_cq_event,
    .ack_cq_events = ack_cq_events,
    .create_srq = create_srq,
    .modify_srq = modify_srq,
    .query_srq = query_srq,
    .destroy_srq = destroy_srq,
    .create_qp = create_qp,
    .modify_qp = modify_qp,
    .query_qp = query_qp,
    .destroy_qp = destroy_qp,
    .create_ah = create_ah,
    .destroy_ah = destroy_ah,
    .attach_mcast = attach_mcast,
    .detach_mcast = detach_mcast,
    .query_gid_ex = query_gid_ex,
    .query_gid_table = query_gid_table,
    .resolve_eth_l2_from_gid = resolve_eth_l2_from_gid,
    .init_ah_from_wc = init_ah_from_wc,
    .rereg_mr = rereg_mr,
    .import_device = import_device,
    .import_pd = import_pd,
    .unimport_pd = unimport_pd,
    .import_mr = import_mr,
    .unimport_mr = unimport_mr,
    .qp_to_qp_ex = qp_to_qp_ex,
};

}  // namespace

const verbs::Provider* provider() { return &kProvider; }

base::Status last_error() { return last_remembered(); }

std::string layout_text() { return base::format("%u.%u", kLayoutMajor, kLayoutMinor); }

base::Result<CleanReport> clean_fabric() {
  base::Result<FabricPath> path = FabricPath::from_environment();
  if (!path.ok()) return path.status();
  CleanReport report;
  base::Result<FolderLock> lock = FolderLock::take(path.value());
  if (!lock.ok()) {
    if (lock.status().code == ENOENT) return report;  // nothing there
    return lock.status();
  }
  base::Result<std::unique_ptr<Root>> root =
      Root::open(lock.value().folder(), path.value(), false, &report.bytes);
  if (!root.ok()) {
    if (root.status().code != ENOENT) return root.status();
    // A folder without a root: a join that was killed, or what another layout left.
    remove_fabric(path.value(), lock.value().folder(), &report.bytes);
    return report;
  }
  report.reaped = reap_all(*root.value(), &report.bytes);
  if (!anybody_present(*root.value()))
    remove_fabric(path.value(), lock.value().folder(), &report.bytes);
  return report;
}

}  // namespace millrace::soft
