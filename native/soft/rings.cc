#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <string>

#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/pipeline.h"
#include "soft/step.h"

/** An initiator's completion rings into the CQs of its receivers. */
namespace millrace::soft {
namespace {

/** The ring is not needed any more and nobody will drain it: its receiver is gone, and with it the
 * claim on the file. */
void remove_ring_file(Qp& qp, const RingUse& use) {
  const uint64_t entry = directory_word(qp.process->slot(), qp.process->incarnation(), qp.number);
  unlinkat(qp.process->root().folder(),
           ring_name(use.process->owner(), use.cq_serial, entry).c_str(), 0);
}

/** Whether the receiver still has this ring in its directory; only the receiver ever frees an
 * entry. */
bool ring_is_known(const Qp& qp, const RingUse& use) {
  const uint64_t entry = directory_word(qp.process->slot(), qp.process->incarnation(), qp.number);
  return use.cq->serial == use.cq_serial &&
         use.cq->directory[use.index].load(std::memory_order_acquire) == entry;
}

/**
 * Lets go of SRQs that are gone, of rings into CQs that are, and so of the memory of receivers that
 * have died.
 */
void prune(Qp& qp) {
  for (size_t i = qp.peers.size(); i-- > 0;) {
    if (!peer_is_live(*qp.peers[i])) forget_peer(qp, qp.peers[i].get());
  }
  for (size_t i = 0; i < qp.rings.size();) {
    RingUse* use = qp.rings[i].get();
    const bool dead = use->process->dead();
    bool used = use->touched || (!dead && ring_is_known(qp, *use));
    for (const auto& peer : qp.peers) used |= peer->ring == use;
    if (used) {
      ++i;
      continue;
    }
    if (dead) remove_ring_file(qp, *use);
    qp.rings.erase(qp.rings.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace

ibv_wc_status claim_ring(Qp& qp, const std::shared_ptr<PeerProcess>& process, CqShared* cq,
                         uint32_t max_wr, RingUse** out, int* error, bool* full) {
  const uint64_t serial = cq->serial.load();
  if (serial == 0) return IBV_WC_REM_INV_REQ_ERR;
  prune(qp);
  for (const auto& use : qp.rings) {
    if (use->cq == cq && ring_is_known(qp, *use)) {
      *out = use.get();
      return IBV_WC_SUCCESS;
    }
  }
  Process& self = *qp.process;
  Root& root = self.root();
  uint32_t capacity = 64;
  // Who can't wait for room (UC, UD and RAW_PACKET) loses what finds none: room for most WQEs, and
  // for all of them where there is one sender.
  const bool waits = qp.type() == IBV_QPT_RC || qp.type() == IBV_QPT_XRC_SEND;
  const uint32_t most = waits ? 256 : qp.type() == IBV_QPT_UC ? kMaxSrqWr : 1024;
  while (capacity < max_wr && capacity < most) capacity *= 2;
  const uint64_t entry = directory_word(self.slot(), self.incarnation(), qp.number);
  const std::string name = ring_name(process->owner(), serial, entry);
  base::Result<base::Fd> fd = base::create_reserved(root.folder(), name, carry_offset(capacity));
  if (!fd.ok()) {
    *error = fail(fd.status());
    return IBV_WC_LOC_QP_OP_ERR;
  }
  step("ring made");
  const size_t bytes = ring_bytes(capacity);
  base::Result<std::shared_ptr<base::Mapping>> map =
      ftruncate(fd.value().get(), static_cast<off_t>(bytes)) == 0
          ? self.map_ring(fd.value().get(), bytes)
          : base::Status::error(errno, "extend a completion ring", strerror(errno));
  if (!map.ok()) {
    unlinkat(root.folder(), name.c_str(), 0);
    *error = fail(map.status());
    return IBV_WC_LOC_QP_OP_ERR;
  }
  auto use = std::make_unique<RingUse>();
  use->map = map.take();
  use->ring = reinterpret_cast<Ring*>(use->map->data());
  use->capacity = capacity;
  use->cq = cq;
  use->cq_serial = serial;
  use->process = process;
  if (cq->channel != kNoChannel) {
    use->wake = process->wake(cq->channel);
    if (use->wake == nullptr) {
      // Without it the receiver would sleep for ever. ENOENT: its channel is gone, and so will be
      // its SRQ.
      const int why = errno;
      unlinkat(root.folder(), name.c_str(), 0);
      *error = fail(why, "open a receiver's wake-up FIFO", strerror(why));
      return why == ENOENT ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_LOC_QP_OP_ERR;
    }
    use->wake_fd = use->wake->get();
  }
  Ring& ring = *use->ring;
  ring.initiator = self.owner();
  ring.receiver = process->owner();
  ring.qpn = qp.number;
  ring.capacity = capacity;
  ring.park_channel = park_channel_of(qp);
  ring.magic = kRingMagic;

  // The file is ready before anybody can learn of it. Then: claim, ready bit, wake, and only then
  // the first WQE, so that a receiver never has a WQE taken by somebody whom it was not told of.
  uint32_t index = 0;
  for (; index < kRingsPerCq; ++index) {
    uint64_t expected = 0;
    if (cq->directory[index].load(std::memory_order_relaxed) == 0 &&
        cq->directory[index].compare_exchange_strong(expected, entry)) {
      break;
    }
  }
  if (index == kRingsPerCq) {
    // Some may belong to claimers that died before their ready bit: a visit finds them.
    unlinkat(root.folder(), name.c_str(), 0);
    for (Word& ready : cq->ready) ready.store(~uint64_t{0});
    cq->high.store(kRingsPerCq);
    announce(*cq, 0, use->wake_fd, true);
    *full = true;
    return IBV_WC_SUCCESS;
  }
  step("ring claimed");
  if (cq->serial.load() != serial) {
    // Destroyed, and perhaps made again, since we looked: this claim is nobody's (R22).
    uint64_t mine = entry;
    cq->directory[index].compare_exchange_strong(mine, 0);
    unlinkat(root.folder(), name.c_str(), 0);
    return IBV_WC_REM_INV_REQ_ERR;
  }
  ring.claimed.store(
      1, std::memory_order_release);  // pairs with a reaper's look; before the first WQE is taken
  uint32_t high = cq->high.load();
  while (high < index + 1 && !cq->high.compare_exchange_weak(high, index + 1)) {
  }
  use->index = index;
  step("ring to be announced");
  announce(*cq, index, use->wake_fd, true);
  step("ring announced");
  *out = use.get();
  qp.rings.push_back(std::move(use));
  qp.touched.reserve(qp.rings.size());
  return IBV_WC_SUCCESS;
}

void disconnect_all(Qp& qp) {
  forget_peers(qp);
  for (const auto& use : qp.rings) {
    use->ring->closed.store(
        1,
        std::memory_order_release);  // after the last tail; the receiver reads it before the tail
    step("ring closed");
    if (use->process->dead()) {
      remove_ring_file(qp, *use);
    } else {
      announce(*use->cq, use->index, use->wake_fd, true);
    }
  }
  qp.rings.clear();
}

}  // namespace millrace::soft
