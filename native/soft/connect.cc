#include <errno.h>

#include <memory>
#include <mutex>
#include <utility>

#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/pipeline.h"
#include "soft/step.h"

namespace millrace::soft {

void release_park(Peer& peer) {
  if (peer.park == nullptr) return;
  // Ours alone: nobody else stores to the entry while `who` names us, and a late waker compares the
  // number.
  peer.park->word.store(0);
  peer.park->who.store(0);
  peer.park = nullptr;
}

void forget_peer(Qp& qp, Peer* peer) {
  release_park(*peer);
  Peer*& cached = qp.peer_cache[peer->key % Qp::kPeerCache];
  if (cached == peer) cached = nullptr;
  if (qp.wait_peer == peer) {
    qp.wait = WaitFor::kNothing;
    qp.wait_peer = nullptr;
  }
  std::erase_if(qp.peers, [peer](const std::unique_ptr<Peer>& p) { return p.get() == peer; });
}

bool peer_is_live(const Peer& peer) {
  if (peer.record != nullptr && peer.record->load(std::memory_order_acquire) != peer.live)
    return false;
  return !peer.process->dead();
}

namespace {

/** What a failure to reach a peer's structures means for a WR that needs them. */
ibv_wc_status unreachable(const base::Status& status, int* error) {
  *error = fail(status);
  return status.code == ENOENT || status.code == EPROTO ? IBV_WC_REM_INV_REQ_ERR
                                                        : IBV_WC_LOC_QP_OP_ERR;
}

/** Attaches to a process and to its table of regions. Needs the registry mutex. */
ibv_wc_status attach_process(Qp& qp, uint64_t owner, Peer* peer, int* error) {
  base::Result<std::shared_ptr<PeerProcess>> process =
      qp.process->attach(owner_slot(owner), owner_incarnation(owner));
  if (!process.ok()) {
    *error = fail(process.status());
    return IBV_WC_LOC_QP_OP_ERR;
  }
  if (process.value()->dead()) return IBV_WC_REM_INV_REQ_ERR;
  peer->process = process.value();
  base::Result<ProcessShared*> shared = peer->process->shared();
  if (!shared.ok()) return unreachable(shared.status(), error);
  peer->shared = shared.value();
  return IBV_WC_SUCCESS;
}

/**
 * Resolves a receive queue and claims our ring in its CQ; `cq`: where its completions go, if the
 * queue itself does not say. Needs the registry mutex.
 */
ibv_wc_status attach_queue(Qp& qp, const Ref& ref, QueueId id, uint32_t epoch, const Ref* cq,
                           Peer* peer, int* error, bool* full) {
  base::Result<void*> place = peer->process->resolve(ref, sizeof(QueueShared));
  if (!place.ok()) return unreachable(place.status(), error);
  std::byte* memory = static_cast<std::byte*>(place.value());
  QueueShared* queue = static_cast<QueueShared*>(place.value());
  const QueueLayout layout = {queue->max_wr, queue->max_sge, queue->parks};
  if (queue->id != id || !layout.valid() || layout.bytes() > ref.bytes) {
    return unreachable(base::Status::error(EPROTO, "read a peer's receive queue",
                                           "its sizes don't fit its memory"),
                       error);
  }
  const Ref cq_ref = cq != nullptr ? *cq : queue->cq;
  base::Result<void*> cq_place = peer->process->resolve(cq_ref, sizeof(CqShared));
  if (!cq_place.ok()) return unreachable(cq_place.status(), error);
  const ibv_wc_status status =
      claim_ring(qp, peer->process, static_cast<CqShared*>(cq_place.value()), layout.max_wr,
                 &peer->ring, error, full);
  if (status != IBV_WC_SUCCESS || *full) return status;
  peer->id = id;
  peer->max_wr = layout.max_wr;
  peer->max_sge = layout.max_sge;
  peer->pd = queue->pd;
  peer->parks = reinterpret_cast<ParkEntry*>(memory + layout.park());
  peer->park_count = layout.parks;
  peer->words = reinterpret_cast<Word*>(memory + layout.words());
  peer->wqes = memory + layout.wqes();
  peer->stride = wqe_stride(layout.max_sge);
  peer->posted = wqe_posted(id, epoch);
  peer->queue = queue;
  return IBV_WC_SUCCESS;
}

/** A private copy of an SRQ's record, valid for the word that it has. False: there is none. */
bool read_srq_record(Root& root, uint32_t srqn, SrqRecord** record, uint64_t* word, uint64_t* owner,
                     XrcdKey* xrcd, bool* basic, Ref* queue) {
  *record = &root.srq(srqn % root.srqs());
  *word = (*record)->word.load(std::memory_order_acquire);
  if (record_number(*word) != srqn || record_life(*word) != Life::kLive) return false;
  *owner = (*record)->owner;
  *xrcd = (*record)->xrcd;
  *basic = (*record)->basic != 0;
  *queue = (*record)->queue;
  return (*record)->word.load(std::memory_order_acquire) == *word;
}

/** Resolves an SRQ number that a WR names: not on the data path, may map and open. */
MILLRACE_COLD ibv_wc_status connect_srq(Qp& qp, uint32_t srqn, Peer** out, int* error, bool* full) {
  Root& root = qp.process->root();
  SrqRecord* record = nullptr;
  uint64_t word = 0, owner = 0;
  XrcdKey xrcd;
  bool basic = false;
  Ref ref;
  if (!read_srq_record(root, srqn, &record, &word, &owner, &xrcd, &basic, &ref))
    return IBV_WC_REM_INV_REQ_ERR;
  if (basic || !(xrcd == qp.target_xrcd)) return IBV_WC_REM_INV_REQ_ERR;  // VERBS 2.9
  step("srq found");
  std::lock_guard lock(qp.process->registry());
  auto peer = std::make_unique<Peer>();
  peer->key = srqn;
  peer->record = &record->word;
  peer->live = word;
  ibv_wc_status status = attach_process(qp, owner, peer.get(), error);
  if (status != IBV_WC_SUCCESS) return status;
  status = attach_queue(qp, ref, srqn, 0, nullptr, peer.get(), error, full);
  if (status != IBV_WC_SUCCESS || *full) return status;
  peer->rkey_pd = peer->pd;  // VERBS 2.10
  *out = peer.get();
  qp.peers.push_back(std::move(peer));
  return IBV_WC_SUCCESS;
}

/** The receive queue of a connected QP's peer: its own, or its SRQ. Needs the registry mutex. */
ibv_wc_status connect_queue(Qp& qp, uint32_t srqn, const Ref& own, const Ref& cq, uint64_t owner,
                            Peer* peer, int* error, bool* full) {
  if (srqn == 0) {
    if (own.bytes == 0) return IBV_WC_REM_INV_REQ_ERR;
    return attach_queue(qp, own, own_queue(qp.target_number), health_epoch(qp.target_health), &cq,
                        peer, error, full);
  }
  SrqRecord* srq = nullptr;
  uint64_t word = 0, srq_owner = 0;
  XrcdKey xrcd;
  bool basic = false;
  Ref ref;
  if (!read_srq_record(qp.process->root(), srqn, &srq, &word, &srq_owner, &xrcd, &basic, &ref) ||
      srq_owner != owner) {
    return IBV_WC_REM_INV_REQ_ERR;
  }
  const ibv_wc_status status = attach_queue(qp, ref, srqn, 0, &cq, peer, error, full);
  if (status == IBV_WC_SUCCESS && !*full) {
    peer->record = &srq->word;
    peer->live = word;
  }
  return status;
}

/** Resolves what a connected QP needs of its peer, or what is missing of it. */
MILLRACE_COLD ibv_wc_status connect_peer(Qp& qp, bool with_queue, Peer** out, int* error,
                                         bool* full) {
  const QpRecord& record = *qp.target;
  const uint64_t owner = record.owner;
  const uint32_t pd = record.pd;
  const uint32_t srqn = record.srqn;
  const Ref own = record.queue;
  const Ref cq = record.cq;
  // All of it is of the connection that was checked, or it does not count (R24).
  if (record.word.load(std::memory_order_acquire) != qp.target_word ||
      record.health.load(std::memory_order_acquire) != qp.target_health) {
    return IBV_WC_REM_INV_REQ_ERR;
  }
  step("peer found");
  std::lock_guard lock(qp.process->registry());
  // Out of the list meanwhile: claim_ring() prunes that.
  std::unique_ptr<Peer> peer;
  if (qp.peers.empty()) {
    peer = std::make_unique<Peer>();
    peer->rkey_pd = pd;
    const ibv_wc_status status = attach_process(qp, owner, peer.get(), error);
    if (status != IBV_WC_SUCCESS) return status;
  } else {
    peer = std::move(qp.peers.front());
    qp.peers.clear();
  }
  *out = peer.get();
  ibv_wc_status status = IBV_WC_SUCCESS;
  if (with_queue && peer->queue == nullptr)
    status = connect_queue(qp, srqn, own, cq, owner, peer.get(), error, full);
  qp.peers.push_back(std::move(peer));
  return status;
}

}  // namespace

ibv_wc_status find_srq_peer(Qp& qp, uint32_t srqn, Peer** out, int* error, bool* full) {
  Peer*& cached = qp.peer_cache[srqn % Qp::kPeerCache];
  if (cached != nullptr && cached->key == srqn && peer_is_live(*cached)) {
    *out = cached;
    return IBV_WC_SUCCESS;
  }
  for (const auto& peer : qp.peers) {
    if (peer->key != srqn) continue;
    if (peer_is_live(*peer)) {
      cached = peer.get();
      *out = cached;
      return IBV_WC_SUCCESS;
    }
    forget_peer(qp, peer.get());
    return IBV_WC_REM_INV_REQ_ERR;  // numbers are not used again
  }
  const ibv_wc_status status = connect_srq(qp, srqn, out, error, full);
  if (status == IBV_WC_SUCCESS && !*full) qp.peer_cache[srqn % Qp::kPeerCache] = *out;
  return status;
}

ibv_wc_status find_connected_peer(Qp& qp, bool queue, Peer** out, int* error, bool* full) {
  if (!qp.peers.empty()) {
    Peer* peer = qp.peers.front().get();
    if (peer_is_live(*peer)) {
      if (!queue || peer->queue != nullptr) {
        *out = peer;
        return IBV_WC_SUCCESS;
      }
    } else {
      forget_peer(qp, peer);
    }
  }
  return connect_peer(qp, queue, out, error, full);
}

ibv_wc_status find_datagram_peer(Qp& qp, uint32_t qpn, Peer** out, int* error, bool* full) {
  Root& root = qp.process->root();
  QpRecord& record = root.qp(qpn % root.qps());
  const uint64_t word = record.word.load(std::memory_order_acquire);
  const uint64_t health = record.health.load(std::memory_order_acquire);
  qp.target = &record;
  qp.target_number = qpn;
  qp.target_word = word;
  qp.target_health = health;
  Peer*& cached = qp.peer_cache[qpn % Qp::kPeerCache];
  Peer* peer = cached != nullptr && cached->key == qpn ? cached : nullptr;
  for (size_t i = 0; peer == nullptr && i < qp.peers.size(); ++i) {
    if (qp.peers[i]->key == qpn) peer = qp.peers[i].get();
  }
  if (peer != nullptr) {
    if (peer->qp_word == word && peer->qp_health == health && peer_is_live(*peer)) {
      cached = peer;
      *out = peer;
      return IBV_WC_SUCCESS;
    }
    forget_peer(qp, peer);
  }
  if (record_number(word) != qpn || record_life(word) != Life::kLive ||
      !can_receive(record_state(word)) || health_fault(health) != Fault::kHealthy) {
    return IBV_WC_REM_INV_REQ_ERR;
  }
  const uint64_t owner = record.owner;
  const uint32_t type = record.type;
  const uint32_t srqn = record.srqn;
  const Ref own = record.queue;
  const Ref cq = record.cq;
  // All of it belongs together, or it does not count (R24).
  if (record.word.load(std::memory_order_acquire) != word ||
      record.health.load(std::memory_order_acquire) != health || type != qp.ex.qp_base.qp_type) {
    return IBV_WC_REM_INV_REQ_ERR;
  }
  step("receiver found");
  std::lock_guard lock(qp.process->registry());
  auto fresh = std::make_unique<Peer>();
  fresh->key = qpn;
  fresh->qp_word = word;
  fresh->qp_health = health;
  ibv_wc_status status = attach_process(qp, owner, fresh.get(), error);
  if (status != IBV_WC_SUCCESS) return status;
  status = connect_queue(qp, srqn, own, cq, owner, fresh.get(), error, full);
  if (status != IBV_WC_SUCCESS || *full) return status;
  *out = cached = fresh.get();
  qp.peers.push_back(std::move(fresh));
  return IBV_WC_SUCCESS;
}

void forget_peers(Qp& qp) {
  while (!qp.peers.empty()) forget_peer(qp, qp.peers.back().get());
}

}  // namespace millrace::soft
