#include "soft/mw.h"

#include <errno.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "soft/device.h"
#include "soft/domains.h"
#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/mr.h"
#include "soft/process.h"
#include "soft/qp.h"
#include "soft/step.h"
#include "soft/translate.h"

namespace millrace::soft {
namespace {

constexpr unsigned int kWindowAccess =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

MrRecord& record_of(Process& process, const Mw& mw) { return process.shared().mrs[mw.index]; }

/** What rights the region must have for a window with these (C10-77 of the InfiniBand
 * specification). */
unsigned int region_access(unsigned int window_access) {
  unsigned int needed = IBV_ACCESS_MW_BIND;
  if ((window_access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0)
    needed |= IBV_ACCESS_LOCAL_WRITE;
  return needed;
}

/** Whether the region can carry that window. Needs the registry mutex. */
bool fits(const Qp& qp, const Mw& mw, const MrRecord& region, const ibv_mw_bind_info& info) {
  return region.state.load(std::memory_order_relaxed) != 0 && region.kind == MrKind::kRegion &&
         region.pd == qp.pd && Pd::of(mw.mw.pd).number == qp.pd &&
         (region.access & IBV_ACCESS_ZERO_BASED) == 0 &&
         (region.access & region_access(info.mw_access_flags)) ==
             region_access(info.mw_access_flags) &&
         in_region(region.iova, region.length, info.addr, info.length);
}

/** A generation that was never used, whose tag is the key's. */
uint32_t next_generation(uint32_t generation, uint32_t key) {
  return ((generation + 256) & ~uint32_t{0xFF}) | (key & 0xFF);
}

/** Only the process that made a window binds it; peers alone take it from live to 0. */
bool close_window(MrRecord& record) { return record.state.exchange(0) != 0; }

}  // namespace

ibv_mw* alloc_mw(ibv_pd* pd_handle, ibv_mw_type type) {
  if (forked()) return fail_null(EPERM, "allocate a memory window", "this process was forked");
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) {
    return fail_null(EINVAL, "allocate a memory window",
                     base::format("there is no type %d", static_cast<int>(type)));
  }
  Pd& pd = Pd::of(pd_handle);
  Context& context = Context::of(pd_handle->context);
  Process& process = *context.process;
  auto mw = std::make_unique<Mw>();
  std::lock_guard registry(process.registry());
  mw->index = process.claim_mr();
  if (mw->index == kMrs) {
    return fail_null(ENOMEM, "allocate a memory window",
                     base::format("all %u regions and windows of this process are in use", kMrs));
  }
  MrRecord& record = record_of(process, *mw);
  record.kind = type == IBV_MW_TYPE_1 ? MrKind::kWindow1 : MrKind::kWindow2;
  record.pd = pd.number;
  record.qp = 0;
  record.backing = kNoBacking;
  ++record.generation;
  mw->mw.context = pd_handle->context;
  mw->mw.pd = pd_handle;
  mw->mw.handle = mw->index;
  mw->mw.type = type;
  mw->mw.rkey = mr_key(process.slot(), mw->index, record.generation);
  pd.users.fetch_add(1);
  context.objects.fetch_add(1, std::memory_order_relaxed);
  process.windows.push_back(mw.get());
  return &mw.release()->mw;
}

int dealloc_mw(ibv_mw* handle) {
  if (forked()) return fail(EPERM, "free a memory window", "this process was forked");
  Mw* mw = &Mw::of(handle);
  Context& context = Context::of(handle->context);
  Process& process = *context.process;
  {
    std::lock_guard registry(process.registry());
    close_window(record_of(process, *mw));
    std::erase(process.windows, mw);
    process.release_mr(mw->index);
  }
  Pd::of(handle->pd).users.fetch_sub(1);
  context.objects.fetch_sub(1, std::memory_order_relaxed);
  delete mw;
  return 0;
}

int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) {
  ibv_send_wr wr = {};
  ibv_send_wr* bad = nullptr;
  wr.wr_id = bind->wr_id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = bind->send_flags;
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
  wr.bind_mw.bind_info = bind->bind_info;
  if (const int error = post_send(qp, &wr, &bad)) return error;
  mw->rkey = wr.bind_mw.rkey;
  return 0;
}

int check_bind(const Qp& qp, const ibv_send_wr& wr) {
  const ibv_qp_type type = qp.ex.qp_base.qp_type;
  const ibv_mw* mw = wr.bind_mw.mw;
  if (type != IBV_QPT_RC && type != IBV_QPT_UC && type != IBV_QPT_XRC_SEND)
    return fail(EINVAL, "bind a memory window", "QPs of this type can't");
  if (mw == nullptr || (wr.bind_mw.bind_info.mr == nullptr && wr.bind_mw.bind_info.length != 0))
    return fail(EINVAL, "bind a memory window", "a window and a region are needed");
  const unsigned int known = kWindowAccess | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED;
  if ((wr.bind_mw.bind_info.mw_access_flags & ~known) != 0)
    return fail(EINVAL, "bind a memory window", "unknown access flags");
  return 0;
}

ibv_wc_status run_bind(Qp& qp, const ibv_send_wr& wr) {
  Process& process = *qp.process;
  const ibv_mw_bind_info& info = wr.bind_mw.bind_info;
  std::lock_guard registry(process.registry());
  // The window may have been freed since it was posted.
  const auto found =
      std::find(process.windows.begin(), process.windows.end(), &Mw::of(wr.bind_mw.mw));
  if (found == process.windows.end()) return IBV_WC_MW_BIND_ERR;
  Mw& mw = **found;
  MrRecord& record = record_of(process, mw);
  const uint32_t key = wr.bind_mw.rkey;
  if (key_slot(key) != process.slot() || key_index(key) != mw.index) return IBV_WC_MW_BIND_ERR;
  const bool type2 = record.kind == MrKind::kWindow2;
  if (type2) {
    // Type 2: unbound, and with another key than the last (o10-37.2.30 of the InfiniBand
    // specification).
    if (record.state.load() != 0 || (record.generation & 0xFF) == (key & 0xFF) || info.length == 0)
      return IBV_WC_MW_BIND_ERR;
  }
  if (info.length == 0) {
    close_window(record);
    record.generation = next_generation(record.generation, key);
    mw.bound = nullptr;
    return IBV_WC_SUCCESS;
  }
  const Mr& mr = Mr::of(info.mr);
  if (process.regions.count(&mr) == 0) return IBV_WC_MW_BIND_ERR;  // gone, or only imported
  const MrRecord& region = process.shared().mrs[mr.index];
  if (!fits(qp, mw, region, info)) return IBV_WC_MW_BIND_ERR;

  close_window(record);
  step("window closed");
  const uint64_t offset = info.addr - region.iova;
  record.address = region.address + offset;
  record.length = info.length;
  record.iova = (info.mw_access_flags & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : info.addr;
  record.access = info.mw_access_flags & kWindowAccess;
  record.pd = qp.pd;
  record.backing = region.backing;
  record.file_offset = region.file_offset + offset;
  record.qp = type2 ? qp.number : 0;
  record.generation = next_generation(record.generation, key);
  mw.bound = &mr;
  step("window filled");
  record.state.store(mr_live(record.generation),
                     std::memory_order_release);  // pairs with translate
  if (type2) mw.mw.rkey = key;
  return IBV_WC_SUCCESS;
}

ibv_wc_status run_local_invalidate(Qp& qp, uint32_t rkey) {
  Process& process = *qp.process;
  std::lock_guard registry(process.registry());
  if (key_slot(rkey) != process.slot()) return IBV_WC_LOC_QP_OP_ERR;
  for (const Mw* mw : process.windows) {
    if (mw->index != key_index(rkey)) continue;
    MrRecord& record = record_of(process, *mw);
    const bool mine = record.kind == MrKind::kWindow2 && record.pd == qp.pd &&
                      (record.qp == 0 || record.qp == qp.number) &&
                      (record.generation & 0xFF) == (rkey & 0xFF);
    if (!mine) return IBV_WC_LOC_QP_OP_ERR;
    close_window(record);
    record.qp = 0;
    return IBV_WC_SUCCESS;
  }
  return IBV_WC_LOC_QP_OP_ERR;
}

bool invalidate_remotely(Process& process, PeerProcess& target, uint32_t rkey, uint32_t pd,
                         uint32_t qpn) {
  std::lock_guard registry(process.registry());
  if (key_slot(rkey) != target.slot()) return false;
  base::Result<ProcessShared*> shared = target.shared();
  if (!shared.ok()) return false;
  MrRecord& record = shared.value()->mrs[key_index(rkey)];
  uint64_t state = record.state.load(std::memory_order_acquire);
  const bool window = record.kind == MrKind::kWindow2 && record.pd == pd;
  if (state == 0) return window && (record.generation & 0xFF) == (rkey & 0xFF);
  if (!window || (qpn != 0 && record.qp != qpn) || (state & 0xFF) != (rkey & 0xFF)) return false;
  // By CAS from what was looked at: its owner may have bound it anew (R34).
  const bool done = record.state.compare_exchange_strong(state, 0);
  step("window invalidated");
  return done;
}

uint32_t windows_on(Process& process, const Mr& mr) {
  uint32_t bound = 0;
  for (const Mw* mw : process.windows) {
    bound += mw->bound == &mr && record_of(process, *mw).state.load() != 0;
  }
  return bound;
}

}  // namespace millrace::soft
