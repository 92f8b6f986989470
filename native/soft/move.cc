#include <string.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/clock.h"
#include "base/copy.h"
#include "soft/pipeline.h"
#include "soft/step.h"
#include "soft/translate.h"

namespace millrace::soft {

namespace {

MILLRACE_COLD const Translation* translate_anew(Qp& qp, Peer& peer, uint32_t key,
                                                Translation* out) {
  std::lock_guard lock(qp.process->registry());
  return translate(*qp.process, *peer.process, key, out) ? out : nullptr;
}

}  // namespace

const Translation* translation(Qp& qp, Peer& peer, uint32_t key) {
  Translation& cached = peer.translations[(key >> 8) % Peer::kTranslations];
  if (cached.key == key && cached.record != nullptr &&
      cached.record->load(std::memory_order_acquire) ==
          cached.state) {  // pairs with reg_mr / dereg_mr
    return &cached;
  }
  return translate_anew(qp, peer, key, &cached);
}

namespace {

/** Moves bytes between local segments and one remote range, which lies in [address, +bytes) of the
 * translation. */
class Mover {
 public:
  Mover(Qp& qp, Peer& peer, Segment* segments, int count)
      : qp_(qp), peer_(peer), segments_(segments), left_(count) {}

  bool move(const Translation& to, uint64_t address, uint32_t bytes, bool read) {
    if (to.base == nullptr) return foreign(to.address + (address - to.iova), bytes, read);
    std::byte* remote = to.base + (address - to.iova);
    // A naturally aligned 8-byte write is one atomic store: what polls such a counter never sees
    // half of it. Release: who reads the new value (acquire) also sees the writes that were posted
    // before it.
    if (bytes == 8 && !read && left_ > 0 && segments_->bytes >= 8 &&
        reinterpret_cast<uintptr_t>(remote) % 8 == 0) {
      uint64_t value;
      memcpy(&value, segments_->data, 8);
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(remote))
          .store(value, std::memory_order_release);
      skip(8);
      return true;
    }
    while (bytes > 0) {
      const uint32_t n = std::min(bytes, segments_->bytes);
      if (read) {
        base::copy_bytes(segments_->data, remote, n);
      } else {
        base::copy_bytes(remote, segments_->data, n);
      }
      remote += n;
      bytes -= n;
      skip(n);
    }
    return true;
  }

  /** All segments into a slot of a ring, behind `front` bytes that nobody has sent. */
  void copy_out(std::byte* slot, uint32_t front) {
    memset(slot, 0, front);
    slot += front;
    for (int i = 0; i < left_; ++i) {
      memcpy(slot, segments_[i].data, segments_[i].bytes);
      slot += segments_[i].bytes;
    }
  }

  /** Memory that is not a mapped file: the kernel copies, by pid. */
  MILLRACE_COLD bool foreign(uint64_t address, uint32_t bytes, bool read) {
    Root& root = qp_.process->root();
    const PeerProcess& process = *peer_.process;
    std::byte* const own_memory = reinterpret_cast<std::byte*>(address);
    const bool self = process.owner() == qp_.process->owner();
    if (!self && (root.process(process.slot()).pid_namespace != qp_.process->pid_namespace() ||
                  !owns_its_pid(root))) {
      return false;  // a pid means nothing there, or may be somebody else's by now
    }
    const pid_t pid = static_cast<pid_t>(peer_.shared->pid);
    uint64_t done = 0;
    while (bytes > 0) {
      const uint32_t n = std::min(bytes, segments_->bytes);
      if (self) {
        if (read) {
          memmove(segments_->data, own_memory + done, n);
        } else {
          memmove(own_memory + done, segments_->data, n);
        }
      } else {
        iovec here = {segments_->data, n};
        iovec there = {own_memory + done, n};
        const ssize_t moved = read ? process_vm_readv(pid, &here, 1, &there, 1, 0)
                                   : process_vm_writev(pid, &here, 1, &there, 1, 0);
        if (moved != static_cast<ssize_t>(n)) return false;
      }
      done += n;
      bytes -= n;
      skip(n);
    }
    return true;
  }

 private:
  /** Whether the peer lives, and so its pid is its own. A pid is not given to another before all
   * the others were, which takes longer than a tick of the clock: one look a tick is enough, and a
   * look is a system call. */
  bool owns_its_pid(Root& root) {
    const uint64_t now = base::coarse_now_ns();
    if (now == peer_.pid_seen_at) return true;
    if (root.is_dead(peer_.process->slot(), peer_.process->incarnation())) return false;
    peer_.pid_seen_at = now;
    return true;
  }

  void skip(uint32_t n) {
    segments_->data += n;
    segments_->bytes -= n;
    if (segments_->bytes == 0) {
      ++segments_;
      --left_;
    }
  }

  Qp& qp_;
  Peer& peer_;
  Segment* segments_;
  int left_;
};

}  // namespace

ScatterResult scatter(Qp& qp, Peer& peer, uint32_t index, Segment* segments, int count,
                      uint32_t total, uint32_t skip) {
  const Wqe& shared = *reinterpret_cast<const Wqe*>(peer.wqes + peer.stride * index);
  const uint32_t num_sge = shared.num_sge;
  if (num_sge > peer.max_sge) return {IBV_WC_REM_OP_ERR, IBV_WC_LOC_QP_OP_ERR};
  Sge sge[kMaxRecvSge];
  uint64_t room = 0;
  for (uint32_t i = 0; i < num_sge; ++i) {
    sge[i] = shared.sge[i];  // a private copy; checks and use see the same numbers (I9)
    room += sge[i].length;
  }
  if (uint64_t{total} + skip > room)
    return {IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR};  // VERBS 2.13
  Mover mover(qp, peer, segments, count);
  const uint32_t front = skip;
  uint32_t left = total;
  std::byte* slot = nullptr;
  for (uint32_t i = 0; i < num_sge && left > 0; ++i) {
    uint64_t at = sge[i].address;
    uint32_t length = sge[i].length;
    const uint32_t skipped = std::min(skip, length);
    skip -= skipped;
    at += skipped;
    length -= skipped;
    const uint32_t n = std::min(left, length);
    if (n == 0) continue;
    const Translation* to = translation(qp, peer, sge[i].lkey);
    // The key is checked against the queue's PD (VERBS 2.10). A window's is no local key.
    if (to == nullptr || to->kind != MrKind::kRegion || to->pd != peer.pd ||
        (to->access & IBV_ACCESS_LOCAL_WRITE) == 0 ||
        !in_region(to->iova, to->length, sge[i].address, sge[i].length)) {
      return {IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR};
    }
    // All of the message or nothing; the other elements are only checked then.
    if (to->base == nullptr && left == total) slot = carry_slot(qp, *peer.ring, front + total);
    if (slot == nullptr && !mover.move(*to, at, n, false))
      return {IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR};
    step("half copied");
    left -= n;
  }
  if (slot == nullptr) return {};
  mover.copy_out(slot, front);
  step("carried");
  ScatterResult carried;
  carried.carried = true;
  return carried;
}

bool move_foreign(Qp& qp, Peer& peer, Segment* segments, int count, uint64_t address,
                  uint32_t bytes, bool read) {
  return Mover(qp, peer, segments, count).foreign(address, bytes, read);
}

ibv_wc_status check_one_sided(Qp& qp, Peer& peer, const ibv_send_wr& wr, const Operation& op,
                              uint32_t total) {
  if (op.atomic_write && (total != 8 || wr.wr.rdma.remote_addr % 8 != 0))
    return IBV_WC_REM_INV_REQ_ERR;
  if (total == 0) return IBV_WC_SUCCESS;
  const uint32_t need = op.remote_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  if ((qp.target->access.load(std::memory_order_relaxed) & need) == 0) return IBV_WC_REM_ACCESS_ERR;
  const Translation* to = translation(qp, peer, wr.wr.rdma.rkey);
  // A type 2 window is good for the QP that it was bound on. XRC targets bind nothing: there, as
  // for type 1, the PD decides.
  const bool bound_here =
      qp.type() == IBV_QPT_XRC_SEND || to == nullptr || to->good_for(qp.target_number);
  if (to == nullptr || !bound_here || to->pd != peer.rkey_pd || (to->access & need) == 0 ||
      !in_region(to->iova, to->length, wr.wr.rdma.remote_addr, total)) {
    return IBV_WC_REM_ACCESS_ERR;
  }
  return IBV_WC_SUCCESS;
}

ibv_wc_status one_sided(Qp& qp, Peer& peer, const ibv_send_wr& wr, const Operation& op,
                        Segment* segments, int count, uint32_t total) {
  const ibv_wc_status status = check_one_sided(qp, peer, wr, op, total);
  if (status != IBV_WC_SUCCESS || total == 0) return status;
  const Translation* to = translation(qp, peer, wr.wr.rdma.rkey);
  if (to == nullptr) return IBV_WC_REM_ACCESS_ERR;  // withdrawn since
  Mover mover(qp, peer, segments, count);
  const bool moved = mover.move(*to, wr.wr.rdma.remote_addr, total, op.remote_read);
  step("moved");
  return moved ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR;
}

}  // namespace millrace::soft
