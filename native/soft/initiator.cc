#include "soft/initiator.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "soft/channel.h"
#include "soft/error.h"
#include "soft/step.h"

// One work request goes through these stages, each a function that may end it with a status or let
// it wait:
//   gather    the local elements are checked (key, PD, bounds, access)
//   target    the XRC target QP that we are connected to exists and is ready to receive
//   peer      the SRQ that the WR names: its memory, its CQ and our ring there (resolved once, then
//   cached) room      the ring has room (R3) take      one WQE becomes TAKEN by us (R1, R4) scatter
//   its elements are checked on a private copy, and the bytes are copied commit    the entry is
//   written and the ring's tail published: the only commit (R1) complete  our own completion; and,
//   once for a list of WRs, the receiver is told (R7, R9)
// RC, UC and UD use the same stages with another `target` and `peer`.

namespace millrace::soft {
namespace {

constexpr uint64_t kForever = ~uint64_t{0};
constexpr uint64_t kLookAgainNs = 5'000'000;

struct Segment {
  std::byte* data;
  uint32_t bytes;
};

/** What a WR asks for, from its opcode. */
struct Operation {
  bool known = false;
  bool takes_wqe = false;
  bool remote_write = false;
  bool remote_read = false;
  bool immediate = false;
  ibv_wc_opcode sent = IBV_WC_SEND;
  ibv_wc_opcode received = IBV_WC_RECV;
};

Operation operation_of(ibv_wr_opcode opcode) {
  Operation op;
  op.known = true;
  switch (opcode) {
    case IBV_WR_SEND:
      op.takes_wqe = true;
      break;
    case IBV_WR_SEND_WITH_IMM:
      op.takes_wqe = op.immediate = true;
      break;
    case IBV_WR_RDMA_WRITE:
      op.remote_write = true;
      op.sent = IBV_WC_RDMA_WRITE;
      break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      op.remote_write = op.takes_wqe = op.immediate = true;
      op.sent = IBV_WC_RDMA_WRITE;
      op.received = IBV_WC_RECV_RDMA_WITH_IMM;
      break;
    case IBV_WR_RDMA_READ:
      op.remote_read = true;
      op.sent = IBV_WC_RDMA_READ;
      break;
    default:
      op.known = false;
  }
  return op;
}

struct Outcome {
  bool waits = false;
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t bytes = 0;
  uint32_t vendor = 0;  ///< errno, where one caused the status

  static Outcome failed(ibv_wc_status status, int error = 0) {
    Outcome out;
    out.status = status;
    out.vendor = static_cast<uint32_t>(error);
    return out;
  }
};

/** min_rnr_timer's encoding, in units of 10 us (InfiniBand's table). */
uint64_t rnr_timer_ns(uint32_t code) {
  static constexpr uint32_t kTens[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                         16,    24,   32,   48,    64,    96,    128,   192,
                                         256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                         4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return static_cast<uint64_t>(kTens[code & 31]) * 10'000u;
}

/** Where a wake-up for this QP should go: the channel of its send CQ, else any of its context. */
uint32_t park_channel_of(Qp& qp) {
  if (qp.send_cq != nullptr && qp.send_cq->channel != nullptr) return qp.send_cq->channel->number;
  return kNoChannel;
}

/**
 * Lets the front WR wait, or ends it when its budget is used up. The budget starts when it begins
 * to wait for this kind of thing.
 */
Outcome wait_or_fail(Qp& qp, WaitFor what, Peer* peer, uint64_t seen, uint64_t budget_ns,
                     ibv_wc_status exhausted) {
  if (qp.wait != what || qp.wait_peer != peer) {
    if (budget_ns == 0) return Outcome::failed(exhausted);
    qp.wait = what;
    qp.wait_peer = peer;
    qp.deadline = budget_ns == kForever ? 0 : base::now_ns() + budget_ns;
  } else if (qp.deadline != 0 && base::now_ns() >= qp.deadline) {
    return Outcome::failed(exhausted);
  }
  // Timers run in event mode too, where nobody polls. What nobody wakes us for is looked at from
  // time to time.
  if (qp.send_cq->channel != nullptr) {
    uint64_t at = qp.deadline;
    if (what == WaitFor::kTarget || what == WaitFor::kDirectory) {
      const uint64_t soon = base::now_ns() + kLookAgainNs;
      at = at == 0 ? soon : std::min(at, soon);
    }
    if (at != 0) qp.send_cq->channel->wake_at(at);
  }
  qp.wait_seen = seen;
  qp.wait_status = exhausted;
  Outcome out;
  out.waits = true;
  return out;
}

Outcome rnr(Qp& qp, WaitFor what, Peer* peer, uint64_t seen) {
  const uint32_t retries = qp.attr.rnr_retry;
  uint64_t budget = kForever;  // 7 is for ever
  if (retries < 7)
    budget = retries * rnr_timer_ns(qp.target->min_rnr_timer.load(std::memory_order_relaxed));
  return wait_or_fail(qp, what, peer, seen, budget, IBV_WC_RNR_RETRY_EXC_ERR);
}

// -------------------------------------------------------------------------------------------------
// gather

/** Checks and resolves the local elements. `access`: 0 to send from them, LOCAL_WRITE to read into
 * them. */
ibv_wc_status gather(Qp& qp, const ibv_send_wr& wr, uint32_t access, Segment* out, int* count,
                     uint32_t* total) {
  uint64_t sum = 0;
  int n = 0;
  const bool is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0 && access == 0;
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (sge.length == 0) continue;
    std::byte* data = is_inline ? reinterpret_cast<std::byte*>(sge.addr)
                                : local_address(*qp.process, qp.pd, sge, access);
    if (data == nullptr) return IBV_WC_LOC_PROT_ERR;
    out[n++] = Segment{data, sge.length};
    sum += sge.length;
  }
  if (sum > (uint64_t{1} << 31)) return IBV_WC_LOC_LEN_ERR;
  *count = n;
  *total = static_cast<uint32_t>(sum);
  return IBV_WC_SUCCESS;
}

// -------------------------------------------------------------------------------------------------
// target

/** The target can take a packet of ours; checked in full only when its word has changed. */
bool target_ready(Qp& qp) {
  if (qp.target == nullptr) return false;
  const uint64_t word = qp.target->word.load(std::memory_order_acquire);
  if (word == qp.target_word) return true;
  const Life life = record_life(word);
  const uint32_t state = record_state(word);
  // CLOSING still is alive: its closer has not yet looked again (see closing_step).
  if (record_number(word) != qp.target_number || (life != Life::kLive && life != Life::kClosing) ||
      qp.target->type != IBV_QPT_XRC_RECV || (state != IBV_QPS_RTR && state != IBV_QPS_RTS)) {
    qp.target_word = kUncheckedTarget;
    return false;
  }
  const XrcdKey key = qp.target->xrcd;
  if (qp.target->word.load(std::memory_order_acquire) != word) return target_ready(qp);
  if (!(key == qp.target_xrcd)) forget_peers(qp);  // they were checked against another domain
  qp.target_xrcd = key;
  qp.target_word = life == Life::kLive ? word : kUncheckedTarget;
  return true;
}

// ---------------------------------------------------------------------------------------------------
// peer

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
  Peer*& cached = qp.peer_cache[peer->srqn % Qp::kPeerCache];
  if (cached == peer) cached = nullptr;
  if (qp.wait_peer == peer) {
    qp.wait = WaitFor::kNothing;
    qp.wait_peer = nullptr;
  }
  std::erase_if(qp.peers, [peer](const std::unique_ptr<Peer>& p) { return p.get() == peer; });
}

bool peer_is_live(const Peer& peer) {
  return peer.record->load(std::memory_order_acquire) == peer.live && !peer.process->dead();
}

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

/** Makes this QP's ring into a CQ and claims a directory entry for it. Needs the registry mutex. */
ibv_wc_status claim_ring(Qp& qp, const std::shared_ptr<PeerProcess>& process, CqShared* cq,
                         uint32_t srq_wr, RingUse** out, int* error, bool* full) {
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
  while (capacity < srq_wr && capacity < 256) capacity *= 2;
  const uint64_t entry = directory_word(self.slot(), self.incarnation(), qp.number);
  const std::string name = ring_name(process->owner(), serial, entry);
  const size_t bytes = align_up(ring_bytes(capacity), 4096);
  base::Result<base::Fd> fd = base::create_reserved(root.folder(), name, bytes);
  if (!fd.ok()) {
    *error = fail(fd.status());
    return IBV_WC_LOC_QP_OP_ERR;
  }
  step("ring made");
  base::Result<std::shared_ptr<base::Mapping>> map = self.map_ring(fd.value().get(), bytes);
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
  announce(*cq, index, use->wake_fd, true);
  step("ring announced");
  *out = use.get();
  qp.rings.push_back(std::move(use));
  qp.touched.reserve(qp.rings.size());
  return IBV_WC_SUCCESS;
}

/** Resolves an SRQ number: not on the data path, may map and open. */
ibv_wc_status connect(Qp& qp, uint32_t srqn, Peer** out, int* error, bool* full) {
  Process& self = *qp.process;
  Root& root = self.root();
  SrqRecord& record = root.srq(srqn % root.srqs());
  const uint64_t word = record.word.load(std::memory_order_acquire);
  if (record_number(word) != srqn || record_life(word) != Life::kLive)
    return IBV_WC_REM_INV_REQ_ERR;
  const uint64_t owner = record.owner;
  const XrcdKey xrcd = record.xrcd;
  const Ref ref = record.srq;
  if (record.word.load(std::memory_order_acquire) != word) return IBV_WC_REM_INV_REQ_ERR;
  if (!(xrcd == qp.target_xrcd)) return IBV_WC_REM_INV_REQ_ERR;  // VERBS 2.9
  step("srq found");

  std::lock_guard lock(self.registry());
  base::Result<std::shared_ptr<PeerProcess>> process =
      self.attach(owner_slot(owner), owner_incarnation(owner));
  if (!process.ok()) {
    *error = fail(process.status());
    return IBV_WC_LOC_QP_OP_ERR;
  }
  if (process.value()->dead()) return IBV_WC_REM_INV_REQ_ERR;

  const auto unreachable = [&](const base::Status& status) {
    *error = fail(status);
    return status.code == ENOENT || status.code == EPROTO ? IBV_WC_REM_INV_REQ_ERR
                                                          : IBV_WC_LOC_QP_OP_ERR;
  };
  base::Result<void*> place = process.value()->resolve(ref, sizeof(SrqShared));
  if (!place.ok()) return unreachable(place.status());
  SrqShared* srq = static_cast<SrqShared*>(place.value());
  auto peer = std::make_unique<Peer>();
  peer->srqn = srqn;
  peer->record = &record.word;
  peer->live = word;
  peer->srq = srq;
  peer->max_wr = srq->max_wr;
  peer->max_sge = srq->max_sge;
  peer->pd = srq->pd;
  const Ref cq_ref = srq->cq;
  if (srq->srqn != srqn || peer->max_wr == 0 || peer->max_wr > kMaxSrqWr || peer->max_sge == 0 ||
      peer->max_sge > kMaxSrqSge || srq_bytes(peer->max_wr, peer->max_sge) > ref.bytes) {
    return unreachable(
        base::Status::error(EPROTO, "read a peer's SRQ", "its sizes don't fit its memory"));
  }
  peer->words = reinterpret_cast<Word*>(reinterpret_cast<std::byte*>(srq) + srq_words_offset());
  peer->wqes = reinterpret_cast<std::byte*>(srq) + srq_wqes_offset(peer->max_wr);
  peer->stride = wqe_stride(peer->max_sge);
  peer->process = process.value();
  base::Result<void*> cq_place = peer->process->resolve(cq_ref, sizeof(CqShared));
  if (!cq_place.ok()) return unreachable(cq_place.status());
  base::Result<ProcessShared*> shared = peer->process->shared();
  if (!shared.ok()) return unreachable(shared.status());
  peer->shared = shared.value();
  const ibv_wc_status status =
      claim_ring(qp, peer->process, static_cast<CqShared*>(cq_place.value()), peer->max_wr,
                 &peer->ring, error, full);
  if (status != IBV_WC_SUCCESS || *full) return status;
  *out = peer.get();
  qp.peers.push_back(std::move(peer));
  return IBV_WC_SUCCESS;
}

/** The peer for an SRQ number, from the cache if it is there and alive. */
ibv_wc_status find_peer(Qp& qp, uint32_t srqn, Peer** out, int* error, bool* full) {
  Peer*& cached = qp.peer_cache[srqn % Qp::kPeerCache];
  if (cached != nullptr && cached->srqn == srqn && peer_is_live(*cached)) {
    *out = cached;
    return IBV_WC_SUCCESS;
  }
  for (const auto& peer : qp.peers) {
    if (peer->srqn != srqn) continue;
    if (peer_is_live(*peer)) {
      cached = peer.get();
      *out = cached;
      return IBV_WC_SUCCESS;
    }
    forget_peer(qp, peer.get());
    return IBV_WC_REM_INV_REQ_ERR;  // numbers are not used again
  }
  const ibv_wc_status status = connect(qp, srqn, out, error, full);
  if (status == IBV_WC_SUCCESS && !*full) qp.peer_cache[srqn % Qp::kPeerCache] = *out;
  return status;
}

// ---------------------------------------------------------------------------------------------------
// take

/** One WQE for us, by one CAS each (R1, R4); max_wr when there is none. */
uint32_t scan_and_take(Peer& peer, uint64_t posted, uint64_t taken) {
  uint32_t i = peer.srq->hint.load(std::memory_order_relaxed);
  if (i >= peer.max_wr) i = 0;
  for (uint32_t n = 0; n < peer.max_wr; ++n) {
    uint64_t expected = posted;
    // Acquire pairs with the owner's release of POSTED: the WQE's elements are there.
    if (peer.words[i].load(std::memory_order_relaxed) == posted &&
        peer.words[i].compare_exchange_strong(expected, taken, std::memory_order_acq_rel,
                                              std::memory_order_relaxed)) {
      peer.srq->hint.store(i + 1, std::memory_order_relaxed);
      step("taken");
      return i;
    }
    if (++i == peer.max_wr) i = 0;
  }
  return peer.max_wr;
}

/** Puts this QP on the SRQ's list of waiters (R10). False: it is full; then only polling helps. */
bool park(Qp& qp, Peer& peer) {
  const uint32_t channel = park_channel_of(qp);
  if (channel == kNoChannel) return false;
  SrqShared& srq = *peer.srq;
  if (peer.park == nullptr) {
    const uint64_t who = park_who(qp.process->owner(), channel);
    for (uint32_t i = 0; i < kParkEntries; ++i) {
      uint64_t expected = 0;
      if (srq.park[i].who.load(std::memory_order_relaxed) == 0 &&
          srq.park[i].who.compare_exchange_strong(expected, who)) {
        peer.park = &srq.park[i];
        peer.park_index = i;
        step("park claimed");
        break;
      }
    }
    if (peer.park == nullptr) return false;
  }
  // New at each parking, and never another process's: a late CAS of a waker can not clear it by
  // mistake.
  const uint64_t number = (static_cast<uint64_t>(qp.process->incarnation()) << 32) |
                          static_cast<uint32_t>(qp.process->next_number());
  peer.park->word.store(number);
  srq.parked[peer.park_index / 64].fetch_or(uint64_t{1} << (peer.park_index % 64));
  step("parked");
  return true;
}

uint32_t take(Qp& qp, Peer& peer, uint64_t* seen) {
  const uint64_t posted = wqe_posted(peer.srqn);
  const uint64_t taken = wqe_taken(qp.process->owner());
  *seen = peer.srq->posted.load(std::memory_order_acquire);
  uint32_t index = scan_and_take(peer, posted, taken);
  if (index != peer.max_wr) return index;
  if (qp.attr.rnr_retry == 0 || !park(qp, peer)) return index;
  // Registered; now look again (R10). This load and the owner's increment of `posted` are seq_cst,
  // as are our setting of the parked bit and its reading of it: either we see what was posted or
  // the owner sees us.
  *seen = peer.srq->posted.load();
  index = scan_and_take(peer, posted, taken);
  if (index != peer.max_wr) peer.park->word.store(0);
  return index;
}

// -------------------------------------------------------------------------------------------------
// scatter

/** A region of the peer by key, from the private cache if its record has not changed. */
const Translation* translation(Qp& qp, Peer& peer, uint32_t key) {
  Translation& cached = peer.translations[(key >> 8) % Peer::kTranslations];
  if (cached.key == key && cached.record != nullptr &&
      cached.record->load(std::memory_order_acquire) ==
          cached.state) {  // pairs with reg_mr / dereg_mr
    return &cached;
  }
  std::lock_guard lock(qp.process->registry());
  return translate(*qp.process, *peer.process, key, &cached) ? &cached : nullptr;
}

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
        memcpy(segments_->data, remote, n);
      } else {
        memcpy(remote, segments_->data, n);
      }
      remote += n;
      bytes -= n;
      skip(n);
    }
    return true;
  }

 private:
  void skip(uint32_t n) {
    segments_->data += n;
    segments_->bytes -= n;
    if (segments_->bytes == 0) {
      ++segments_;
      --left_;
    }
  }

  /** Memory that is not a mapped file: the kernel copies, by pid. */
  bool foreign(uint64_t address, uint32_t bytes, bool read) {
    Root& root = qp_.process->root();
    const PeerProcess& process = *peer_.process;
    std::byte* const own_memory = reinterpret_cast<std::byte*>(address);
    const bool self = process.owner() == qp_.process->owner();
    if (!self && (root.process(process.slot()).pid_namespace != qp_.process->pid_namespace() ||
                  root.is_dead(process.slot(), process.incarnation()))) {
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

  Qp& qp_;
  Peer& peer_;
  Segment* segments_;
  int left_;
};

struct ScatterResult {
  ibv_wc_status local = IBV_WC_SUCCESS;   ///< what the initiator is told
  ibv_wc_status remote = IBV_WC_SUCCESS;  ///< what the receiver's completion says
};

/** Copies `total` bytes into the buffers of a taken WQE. */
ScatterResult scatter(Qp& qp, Peer& peer, uint32_t index, Segment* segments, int count,
                      uint32_t total) {
  const Wqe& shared = *reinterpret_cast<const Wqe*>(peer.wqes + peer.stride * index);
  const uint32_t num_sge = shared.num_sge;
  if (num_sge > peer.max_sge) return {IBV_WC_REM_OP_ERR, IBV_WC_LOC_QP_OP_ERR};
  Sge sge[kMaxSrqSge];
  uint64_t room = 0;
  for (uint32_t i = 0; i < num_sge; ++i) {
    sge[i] = shared.sge[i];  // a private copy; checks and use see the same numbers (I9)
    room += sge[i].length;
  }
  if (total > room) return {IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR};  // VERBS 2.13
  Mover mover(qp, peer, segments, count);
  uint32_t left = total;
  for (uint32_t i = 0; i < num_sge && left > 0; ++i) {
    const uint32_t n = std::min(left, sge[i].length);
    if (n == 0) continue;
    const Translation* to = translation(qp, peer, sge[i].lkey);
    // The key is checked against the SRQ's PD (VERBS 2.10).
    if (to == nullptr || to->pd != peer.pd || (to->access & IBV_ACCESS_LOCAL_WRITE) == 0 ||
        !in_region(to->iova, to->length, sge[i].address, sge[i].length)) {
      return {IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR};
    }
    if (!mover.move(*to, sge[i].address, n, false)) return {IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR};
    step("half copied");
    left -= n;
  }
  return {};
}

ibv_wc_status one_sided(Qp& qp, Peer& peer, const ibv_send_wr& wr, const Operation& op,
                        Segment* segments, int count, uint32_t total) {
  if (total == 0) return IBV_WC_SUCCESS;
  const uint32_t need = op.remote_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  if ((qp.target->access.load(std::memory_order_relaxed) & need) == 0) return IBV_WC_REM_ACCESS_ERR;
  const Translation* to = translation(qp, peer, wr.wr.rdma.rkey);
  if (to == nullptr || to->pd != peer.pd || (to->access & need) == 0 ||
      !in_region(to->iova, to->length, wr.wr.rdma.remote_addr, total)) {
    return IBV_WC_REM_ACCESS_ERR;
  }
  Mover mover(qp, peer, segments, count);
  return mover.move(*to, wr.wr.rdma.remote_addr, total, op.remote_read) ? IBV_WC_SUCCESS
                                                                        : IBV_WC_REM_OP_ERR;
}

// -------------------------------------------------------------------------------------------------
// commit

/** Room in the ring for one more entry, or the head that was seen when there is none (R3). */
bool has_room(Qp& qp, RingUse& use, uint64_t* seen) {
  if (use.tail - use.head_seen < use.capacity) return true;
  use.head_seen =
      use.ring->head.load(std::memory_order_acquire);  // pairs with the receiver's store of head
  if (use.tail - use.head_seen < use.capacity) return true;
  if (park_channel_of(qp) != kNoChannel) {
    use.ring->park.store(qp.process->next_number());
    use.head_seen = use.ring->head.load();  // again, after registering; seq_cst on both sides (R10)
    if (use.tail - use.head_seen < use.capacity) return true;
  }
  *seen = use.head_seen;
  return false;
}

void commit(Qp& qp, Peer& peer, const ibv_send_wr& wr, const Operation& op, uint32_t index,
            uint32_t total, ibv_wc_status status) {
  RingUse& use = *peer.ring;
  Entry& entry = use.ring->entries[use.tail & (use.capacity - 1)];
  entry.wqe = index;
  entry.byte_len = total;
  entry.imm = op.immediate ? wr.imm_data : 0;
  entry.opcode = static_cast<uint8_t>(op.received - IBV_WC_RECV);
  entry.flags = op.immediate ? IBV_WC_WITH_IMM : 0;
  entry.status = static_cast<uint8_t>(status);
  const bool solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0 || status != IBV_WC_SUCCESS;
  entry.solicited = solicited;
  entry.src_qp = qp.number;
  entry.qp_num = qp.target_number;
  entry.srqn = peer.srqn;
  entry.position = static_cast<uint32_t>(use.tail);
  step("entry written");
  // The only commit (R1). Release: pairs with the receiver's acquire of the tail; it sees the entry
  // and the copied bytes.
  use.ring->tail.store(++use.tail, std::memory_order_release);
  step("committed");
  use.solicited |= solicited;
  if (!use.touched) {
    use.touched = true;
    qp.touched.push_back(&use);  // never allocates: claim_ring() reserved
  }
}

// ----------------------------------------------------------------------------------------------
// one WR

Outcome run(Qp& qp, const ibv_send_wr& wr) {
  const Operation op = operation_of(wr.opcode);
  Segment segments[kMaxSendSge];
  int count = 0;
  uint32_t total = 0;
  ibv_wc_status status =
      gather(qp, wr, op.remote_read ? static_cast<uint32_t>(IBV_ACCESS_LOCAL_WRITE) : 0, segments,
             &count, &total);
  if (status != IBV_WC_SUCCESS) return Outcome::failed(status);

  if (!target_ready(qp)) {
    // Nobody answers: retried for the whole timeout budget (VERBS 1, lesson 3).
    uint64_t budget = kForever;
    if (qp.attr.timeout != 0) {
      budget = (uint64_t{4096} << qp.attr.timeout) * std::max<uint64_t>(1, qp.attr.retry_cnt);
    }
    return wait_or_fail(qp, WaitFor::kTarget, nullptr, 0, budget, IBV_WC_RETRY_EXC_ERR);
  }

  Peer* peer = nullptr;
  int error = 0;
  bool full = false;
  status = find_peer(qp, wr.qp_type.xrc.remote_srqn & kNumberMask, &peer, &error, &full);
  if (status != IBV_WC_SUCCESS) return Outcome::failed(status, error);
  if (full) return rnr(qp, WaitFor::kDirectory, nullptr, base::now_ns());

  Outcome out;
  out.bytes = total;
  if (!op.takes_wqe) {
    out.status = one_sided(qp, *peer, wr, op, segments, count, total);
    return out;
  }
  uint64_t seen = 0;
  if (!has_room(qp, *peer->ring, &seen)) return rnr(qp, WaitFor::kRing, peer, seen);
  const uint32_t index = take(qp, *peer, &seen);
  if (index == peer->max_wr) {
    // Parked, and looked again: an SRQ that went before that has woken us already, and nobody will
    // do so again (R25).
    if (!peer_is_live(*peer)) return Outcome::failed(IBV_WC_REM_INV_REQ_ERR);
    return rnr(qp, WaitFor::kWqe, peer, seen);
  }

  ScatterResult copied;
  if (op.remote_write) {
    copied.local = one_sided(qp, *peer, wr, op, segments, count, total);
    if (copied.local != IBV_WC_SUCCESS) copied.remote = IBV_WC_LOC_ACCESS_ERR;
  } else {
    copied = scatter(qp, *peer, index, segments, count, total);
  }
  step("copied");
  commit(qp, *peer, wr, op, index, total, copied.remote);
  out.status = copied.local;
  return out;
}

/** After a list of WRs: one announcement for each ring that was committed into. */
void tell_receivers(Qp& qp) {
  for (RingUse* use : qp.touched) {
    announce(*use->cq, use->index, use->wake_fd, use->solicited);
    use->touched = use->solicited = false;
  }
  qp.touched.clear();
}

void complete(Qp& qp, const ibv_send_wr& wr, const Outcome& out) {
  const bool signaled = qp.sq_sig_all || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  if (!signaled && out.status == IBV_WC_SUCCESS) return;
  ibv_wc wc = {};
  wc.wr_id = wr.wr_id;
  wc.status = out.status;
  wc.vendor_err = out.vendor;
  wc.opcode = operation_of(wr.opcode).sent;
  wc.byte_len = out.bytes;
  wc.qp_num = qp.number;
  qp.send_cq->push(wc, out.status != IBV_WC_SUCCESS);
}

/** The QP's whole ability to go on changed: keeps the context's count of QPs with work in step. */
void set_waiting(Qp& qp, bool on) {
  if (qp.waiting.load(std::memory_order_relaxed) == on) return;
  qp.waiting.store(on, std::memory_order_relaxed);
  if (on) {
    qp.context->waiting_qps.fetch_add(1, std::memory_order_relaxed);
  } else {
    qp.context->waiting_qps.fetch_sub(1, std::memory_order_relaxed);
  }
}

void forget_wait(Qp& qp) {
  qp.wait = WaitFor::kNothing;
  qp.wait_peer = nullptr;
  qp.deadline = 0;
}

void pop_waiting(Qp& qp) {
  qp.queue_head = (qp.queue_head + 1) % qp.queue.size();
  --qp.queue_count;
  forget_wait(qp);
  if (qp.queue_count == 0) set_waiting(qp, false);
}

void enter_error(Qp& qp) {
  qp.state = IBV_QPS_ERR;
  qp.ex.qp_base.state = IBV_QPS_ERR;
  flush_waiting(qp);
}

/** Whether another try can have another result than the last. */
bool worth_trying(Qp& qp) {
  switch (qp.wait) {
    case WaitFor::kWqe:
      if (qp.wait_peer->srq->posted.load(std::memory_order_acquire) != qp.wait_seen) return true;
      // Woken for a WQE that another one took before we had parked: `posted` is what we saw, but
      // nobody will wake us again unless we park anew (R10).
      if (qp.wait_peer->park != nullptr && qp.wait_peer->park->word.load() == 0) return true;
      break;
    case WaitFor::kRing:
      if (qp.wait_peer->ring->ring->head.load(std::memory_order_acquire) != qp.wait_seen)
        return true;
      break;
    case WaitFor::kDirectory:
      return base::now_ns() - qp.wait_seen >= kLookAgainNs;
    default:
      return true;
  }
  if (!peer_is_live(*qp.wait_peer)) return true;
  if (qp.target->word.load(std::memory_order_acquire) != qp.target_word) return true;
  return qp.deadline != 0 && base::now_ns() >= qp.deadline;
}

/** Runs what waits, in order, as far as it goes. Needs the QP's lock. */
void run_waiting(Qp& qp) {
  while (qp.queue_count > 0 && qp.state == IBV_QPS_RTS) {
    if (!worth_trying(qp)) break;
    const Waiting& front = qp.queue[qp.queue_head];
    const Outcome out = run(qp, front.wr);
    if (out.waits) break;
    complete(qp, front.wr, out);
    pop_waiting(qp);
    if (out.status != IBV_WC_SUCCESS) enter_error(qp);
  }
}

/** Copies a WR with all that it points to; ENOMEM when the send queue is full. */
int enqueue(Qp& qp, const ibv_send_wr& wr) {
  if (qp.queue_count == qp.queue.size()) return ENOMEM;
  Waiting& slot = qp.queue[(qp.queue_head + qp.queue_count) % qp.queue.size()];
  slot.wr = wr;
  slot.wr.next = nullptr;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    slot.inline_data.clear();
    for (int i = 0; i < wr.num_sge; ++i) {
      const std::byte* data = reinterpret_cast<const std::byte*>(wr.sg_list[i].addr);
      slot.inline_data.insert(slot.inline_data.end(), data, data + wr.sg_list[i].length);
    }
    slot.inline_sge = {};
    slot.inline_sge.addr = reinterpret_cast<uintptr_t>(slot.inline_data.data());
    slot.inline_sge.length = static_cast<uint32_t>(slot.inline_data.size());
    slot.wr.sg_list = &slot.inline_sge;
    slot.wr.num_sge = 1;
  } else {
    slot.sge.assign(wr.sg_list, wr.sg_list + wr.num_sge);
    slot.wr.sg_list = slot.sge.data();
  }
  ++qp.queue_count;
  set_waiting(qp, true);
  return 0;
}

int check_wr(const Qp& qp, const ibv_send_wr& wr) {
  if (!operation_of(wr.opcode).known) return EINVAL;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.cap.max_send_sge) return EINVAL;
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    if (wr.opcode == IBV_WR_RDMA_READ) return EINVAL;
    uint64_t sum = 0;
    for (int i = 0; i < wr.num_sge; ++i) sum += wr.sg_list[i].length;
    if (sum > qp.cap.max_inline_data) return EINVAL;
  }
  return 0;
}

}  // namespace

int post_send(ibv_qp* handle, ibv_send_wr* wr, ibv_send_wr** bad) {
  Qp& qp = Qp::of(handle);
  int error = 0;
  if (__builtin_expect(forked(), 0)) {
    *bad = wr;
    return fail(EPERM, "post a send", "this process was forked from the one that owns the QP");
  }
  std::lock_guard lock(qp.lock);
  for (; wr != nullptr; wr = wr->next) {
    error = qp.is_target() ? EINVAL : check_wr(qp, *wr);
    if (error != 0) break;
    if (qp.state == IBV_QPS_ERR) {
      complete(qp, *wr, Outcome::failed(IBV_WC_WR_FLUSH_ERR));
      continue;
    }
    if (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_SQD) {
      error = EINVAL;
      break;
    }
    if (qp.queue_count > 0 || qp.state == IBV_QPS_SQD) {
      error = enqueue(qp, *wr);
      if (error != 0) break;
      continue;
    }
    const Outcome out = run(qp, *wr);
    if (out.waits) {
      error = enqueue(qp, *wr);
      if (error != 0) {
        forget_wait(qp);
        break;
      }
      continue;
    }
    complete(qp, *wr, out);
    if (__builtin_expect(out.status != IBV_WC_SUCCESS, 0)) enter_error(qp);
  }
  if (__builtin_expect(qp.queue_count > 0, 0)) run_waiting(qp);
  tell_receivers(qp);
  if (error != 0) *bad = wr;
  return error;
}

int post_recv(ibv_qp*, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  // XRC has no receive queue at the QP: receives go to SRQs (VERBS 2.4).
  *bad = wr;
  return fail(EINVAL, "post a receive", "this QP type has no receive queue");
}

void progress(Context& context) {
  if (context.waiting_qps.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard list(context.qps_lock);
  for (Qp* qp : context.qps) {
    if (!qp->waiting.load(std::memory_order_relaxed)) continue;
    std::lock_guard lock(qp->lock);
    run_waiting(*qp);
    tell_receivers(*qp);
  }
}

void flush_waiting(Qp& qp) {
  while (qp.queue_count > 0) {
    complete(qp, qp.queue[qp.queue_head].wr, Outcome::failed(IBV_WC_WR_FLUSH_ERR));
    pop_waiting(qp);
  }
}

void drop_waiting(Qp& qp) {
  while (qp.queue_count > 0) pop_waiting(qp);
}

void forget_peers(Qp& qp) {
  while (!qp.peers.empty()) forget_peer(qp, qp.peers.back().get());
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
