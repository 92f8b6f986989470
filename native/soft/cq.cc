#include "soft/cq.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "soft/channel.h"
#include "soft/error.h"
#include "soft/feed.h"
#include "soft/initiator.h"
#include "soft/qp.h"
#include "soft/srq.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** The receive queue of this process that an entry names; null: there is none (any more). Needs the
 * lock of the CQ that is polled. */
ReceiveQueue* queue_of(Process& process, QueueId id) {
  if ((id & kOwnQueue) != 0) {
    Qp* qp = process.qp_table[(id & kNumberMask) % kQps].load(std::memory_order_acquire);
    return qp != nullptr && qp->queue != nullptr && qp->queue->id == id ? qp->queue.get() : nullptr;
  }
  Srq* srq = process.srq_table[id % kSrqs].load(std::memory_order_acquire);
  return srq != nullptr && srq->number == id ? &srq->queue : nullptr;
}

/** Whether that QP of this process receives from this queue, into this CQ; of an XRC SRQ's
 * completions the target decides, which is nobody's. Needs the CQ's lock. */
bool receives_here(Process& process, uint32_t qpn, const ReceiveQueue& queue, const Cq& cq) {
  if (queue.srq != nullptr && queue.cq != nullptr) return true;
  const Qp* qp = process.qp_table[qpn % kQps].load(std::memory_order_acquire);
  return qp != nullptr && qp->number == qpn && qp->recv_cq == &cq &&
         (queue.srq != nullptr ? qp->srq == queue.srq : qp->queue.get() == &queue);
}

/** Takes up to `room` completions out of a ring; returns how many. Needs the CQ's lock. */
int drain(Cq& cq, uint32_t index, int room, ibv_wc* wc, Extras* extras = nullptr) {
  RingView* view = cq.visit(index);
  if (view == nullptr) return 0;
  // What ends a ring is read before its tail: then the tail that we see is the last one.
  const bool ended = view->ring->closed.load(std::memory_order_acquire) != 0 || view->peer->dead();
  const uint64_t tail = view->ring->tail.load(std::memory_order_acquire);  // pairs with commit()
  const uint64_t owner =
      owner_word(directory_slot(view->entry), directory_incarnation(view->entry));
  if (tail - view->head > view->capacity) {
    cq.bad_entries.fetch_add(1, std::memory_order_relaxed);
    cq.forget(index);  // a tail that can't be: nothing in this ring can be trusted (I9)
    return 0;
  }
  if (__builtin_expect(tail - view->head + cq.send_count.load(std::memory_order_relaxed) >
                           static_cast<uint64_t>(cq.ex.cqe),
                       0)) {
    cq.enter_error();  // noticed here at the latest; what is there is delivered all the same
  }
  int got = 0;
  Process& process = *cq.context->process;
  ReceiveQueue* queue = nullptr;
  const std::byte* const slots =
      reinterpret_cast<const std::byte*>(view->ring) + carry_offset(view->capacity);
  const uint64_t before = view->head;
  while (view->head != tail && got < room) {
    const Entry entry =
        view->ring->entries[view->head & (view->capacity - 1)];  // a private copy (I9)
    const uint16_t position = static_cast<uint16_t>(view->head);
    ++view->head;
    if (queue == nullptr || queue->id != entry.queue) queue = queue_of(process, entry.queue);
    if (queue == nullptr || (queue->cq != nullptr && queue->cq != &cq)) {
      queue = nullptr;
      continue;  // of a queue that has been destroyed meanwhile
    }
    ibv_wc& out = wc[got];
    const bool carried = (entry.flags & kEntryCarried) != 0;
    Elements elements;
    if (entry.position != position || entry.status > IBV_WC_TM_RNDV_INCOMPLETE ||
        (carried && entry.byte_len > kCarryBytes) ||
        !queue->consume(entry.wqe, owner, directory_qpn(view->entry), &out.wr_id,
                        carried ? &elements : nullptr)) {
      cq.bad_entries.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    out.qp_num = entry.qp_num & kNumberMask;
    // Of a QP that is gone from its basic SRQ, or never was the receiver: the WQE is back, but
    // nobody waits for this completion.
    if (!receives_here(process, out.qp_num, *queue, cq)) continue;
    out.status = static_cast<ibv_wc_status>(entry.status);
    if (carried) {
      // Before the head says that the slot is free, and under the CQ's lock: once (R35).
      step("placing");
      if (!queue->place(elements, slots + position % kCarrySlots * kCarryBytes, entry.byte_len)) {
        out.status = IBV_WC_LOC_PROT_ERR;
        fail_receiver(process, out.qp_num);
      }
    }
    out.opcode = static_cast<ibv_wc_opcode>(IBV_WC_RECV + (entry.opcode & 1));
    out.vendor_err = 0;
    out.byte_len = entry.byte_len;
    out.imm_data = entry.imm;
    out.src_qp = entry.src_qp & kNumberMask;
    out.wc_flags =
        entry.flags & (IBV_WC_GRH | IBV_WC_WITH_IMM | IBV_WC_IP_CSUM_OK | IBV_WC_WITH_INV);
    if (extras != nullptr) {
      extras[got] = {};
      if ((entry.flags & kEntryTagged) != 0) extras[got].flow_tag = entry.imm;
    }
    out.pkey_index = entry.pkey_index;
    out.slid = entry.slid;
    out.sl = static_cast<uint8_t>(entry.src_qp >> kNumberBits);
    out.dlid_path_bits = static_cast<uint8_t>(entry.qp_num >> kNumberBits);
    ++got;
  }
  if (view->head != before) {
    // seq_cst store, then the park word: an initiator without room parks, then reads the head again
    // (R10).
    view->ring->head.store(view->head);
    uint64_t parked = view->ring->park.load();
    if (parked != 0) {
      {
        std::lock_guard registry_lock(cq.context->process->registry());
        view->peer->wake_now(view->ring->park_channel);
      }
      view->ring->park.compare_exchange_strong(parked, 0);
    }
  }
  if (view->head != tail) {
    cq.shared->ready[index / 64].fetch_or(uint64_t{1}
                                          << (index % 64));  // left non-empty: set again (R9)
    // Another thread may have armed and looked while the bit was clear (R29).
    cq.notify_own(true);
  } else if (ended) {
    cq.forget(index);
  }
  return got;
}

}  // namespace

void announce(CqShared& cq, uint32_t index, int wake_fd, bool solicited) {
  // The RMW is the fence between the ring's tail and the reading of `armed` (R9). The receiver
  // arms, then reads the ready bits, seq_cst as here: either we see it armed or it sees the bit.
  cq.ready[index / 64].fetch_or(uint64_t{1} << (index % 64));
  step("ready bit");
  uint64_t armed = cq.armed.load();
  if (armed == 0) return;
  if ((armed & 1) != 0 && !solicited) return;
  write_wake(wake_fd, {cq.serial.load(std::memory_order_relaxed), armed});
  step("woken");
  // By CAS from the number that was read: a later arming is not ours to clear (R7).
  cq.armed.compare_exchange_strong(armed, 0);
  step("disarmed");
}

void Cq::notify_own(bool solicited) {
  uint64_t armed = shared->armed.load();
  if (armed == 0) return;
  if ((armed & 1) != 0 && !solicited) return;
  if (channel != nullptr) channel->wake({serial, armed});
  shared->armed.compare_exchange_strong(armed, 0);
}

bool Cq::maybe_ready() const {
  if (send_count.load() != 0) return true;
  const uint32_t words =
      (std::min(shared->high.load(std::memory_order_relaxed), kRingsPerCq) + 63) / 64;
  for (uint32_t w = 0; w < words; ++w) {
    if (shared->ready[w].load() != 0) return true;  // seq_cst: pairs with announce(), after arming
  }
  return false;
}

void Cq::enter_error() {
  if (ignores_overrun || in_error.exchange(true)) return;
  raise_cq_event(handle(), IBV_EVENT_CQ_ERR);
}

bool Cq::append(const ibv_wc& wc, const Extras& extras) {
  const uint32_t count = send_count.load(std::memory_order_relaxed);
  if (__builtin_expect(count == sends.size() || in_error.load(std::memory_order_relaxed), 0)) {
    // I3 is the caller's: a CQ smaller than what can complete into it loses completions on every
    // device.
    enter_error();
    return ignores_overrun;
  }
  uint32_t at = send_head + count;
  if (at >= sends.size()) at -= static_cast<uint32_t>(sends.size());
  sends[at] = Completion{wc, extras};
  send_count.store(count + 1);
  return true;
}

bool Cq::push(const ibv_wc& wc, bool solicited, const Extras& extras) {
  bool kept = false;
  {
    std::lock_guard guard(lock);
    kept = append(wc, extras);
  }
  notify_own(solicited);
  return kept;
}

uint32_t Cq::pending() {
  std::lock_guard guard(lock);
  uint32_t count = send_count.load(std::memory_order_relaxed);
  const uint32_t used = std::min(shared->high.load(std::memory_order_relaxed), kRingsPerCq);
  for (uint32_t i = 0; i < used; ++i) {
    if (shared->directory[i].load(std::memory_order_acquire) == 0) continue;
    const RingView* view = visit(i);
    if (view == nullptr) continue;
    const uint64_t waiting = view->ring->tail.load(std::memory_order_acquire) - view->head;
    if (waiting <= view->capacity) count += static_cast<uint32_t>(waiting);
  }
  return count;
}

void Cq::collect() {
  std::lock_guard guard(lock);
  ibv_wc batch[32];
  Extras extras[32];
  const uint32_t high = std::min(shared->high.load(), kRingsPerCq);
  for (uint32_t i = 0; i < high; ++i) {
    for (int n = 0; (n = drain(*this, i, 32, batch, extras)) > 0;) {
      for (int k = 0; k < n; ++k) append(batch[k], extras[k]);
    }
  }
}

void Cq::purge(uint32_t qpn) {
  std::lock_guard guard(lock);
  Process& process = *context->process;
  const uint32_t high = std::min(shared->high.load(), kRingsPerCq);
  for (uint32_t i = 0; i < high; ++i) {
    RingView* view = visit(i);
    if (view == nullptr) continue;
    const uint64_t tail = view->ring->tail.load(std::memory_order_acquire);
    if (tail - view->head > view->capacity) continue;  // damaged; a poll finds out
    const uint64_t owner =
        owner_word(directory_slot(view->entry), directory_incarnation(view->entry));
    for (uint64_t at = view->head; at != tail; ++at) {
      // Between head and tail an entry is the receiver's.
      Entry& entry = view->ring->entries[at & (view->capacity - 1)];
      const Entry copy = entry;
      if ((copy.qp_num & kNumberMask) != qpn) continue;
      ReceiveQueue* queue = queue_of(process, copy.queue);
      uint64_t wr_id = 0;
      if (queue != nullptr) queue->consume(copy.wqe, owner, directory_qpn(view->entry), &wr_id);
      entry.queue = 0;
    }
  }
  const uint32_t count = send_count.load(std::memory_order_relaxed);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const Completion& one = sends[(send_head + i) % sends.size()];
    if (one.wc.qp_num != qpn) sends[(send_head + kept++) % sends.size()] = one;
  }
  send_count.store(kept);
}

RingView* Cq::visit(uint32_t index) {
  const uint64_t entry =
      shared->directory[index].load(std::memory_order_acquire);  // pairs with the claimer's CAS
  if (index >= rings.size()) rings.resize(index + 1);
  RingView* known = rings[index].get();
  if (known != nullptr && known->entry == entry) return known;
  if (known != nullptr) rings[index].reset();  // can't be: only we free entries
  if (entry == 0) return nullptr;

  Process& process = *context->process;
  Root& root = process.root();
  const std::string name = ring_name(process.owner(), serial, entry);
  base::Fd fd(openat(root.folder(), name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat info = {};
  if (!fd.valid() && errno != ENOENT) {
    shared->ready[index / 64].fetch_or(uint64_t{1}
                                       << (index % 64));  // no descriptors: look again later
    return nullptr;
  }
  auto view = std::make_unique<RingView>();
  bool good = fd.valid() && fstat(fd.get(), &info) == 0 &&
              static_cast<size_t>(info.st_size) >= sizeof(Ring);
  if (good) {
    {
      std::lock_guard registry_lock(process.registry());
      base::Result<std::shared_ptr<base::Mapping>> map =
          process.map_ring(fd.get(), static_cast<size_t>(info.st_size));
      if (!map.ok()) {
        shared->ready[index / 64].fetch_or(uint64_t{1} << (index % 64));
        return nullptr;
      }
      view->map = map.take();
    }
    view->ring = reinterpret_cast<Ring*>(view->map->data());
    view->entry = entry;
    view->capacity = view->ring->capacity;
    good =
        view->ring->magic == kRingMagic && view->ring->receiver == process.owner() &&
        view->ring->initiator == owner_word(directory_slot(entry), directory_incarnation(entry)) &&
        view->ring->qpn == directory_qpn(entry) && view->capacity != 0 &&
        view->capacity <= kMaxCqe && (view->capacity & (view->capacity - 1)) == 0 &&
        ring_bytes(view->capacity) <= view->map->size();
    if (good) view->head = view->ring->head.load(std::memory_order_relaxed);
  }
  if (good) {
    std::lock_guard registry_lock(process.registry());
    auto peer = process.attach(directory_slot(entry), directory_incarnation(entry));
    if (!peer.ok()) {
      shared->ready[index / 64].fetch_or(uint64_t{1} << (index % 64));
      return nullptr;
    }
    view->peer = peer.take();
  } else {
    // A claim for a CQ that had this memory before us, or a damaged ring: nothing in it is ours.
    if (fd.valid()) bad_entries.fetch_add(1, std::memory_order_relaxed);
    // Without a file and with a living owner: it is being undone by its claimer (R22).
    if (!fd.valid() && !root.is_dead(directory_slot(entry), directory_incarnation(entry)))
      return nullptr;
    unlinkat(root.folder(), name.c_str(), 0);
    uint64_t mistaken =
        entry;  // by CAS: its claimer may have undone it, and another be there by now
    shared->directory[index].compare_exchange_strong(mistaken, 0);
    return nullptr;
  }
  // A claim that was undone meanwhile: the file that we opened belongs to another entry of the same
  // QP (R22).
  if (shared->directory[index].load() != entry) return nullptr;
  step("ring visited");
  rings[index] = std::move(view);
  find_lost_claims();  // a lost one costs nothing until others need the directory's room
  return rings[index].get();
}

void Cq::find_lost_claims() {
  Root& root = context->process->root();
  for (uint32_t i = 0; i < kRingsPerCq; ++i) {
    const uint64_t entry = shared->directory[i].load(std::memory_order_acquire);
    const uint64_t bit = uint64_t{1} << (i % 64);
    if (entry == 0 || (i < rings.size() && rings[i] != nullptr)) continue;
    if ((shared->ready[i / 64].load() & bit) != 0) continue;  // announced
    if (!root.is_dead(directory_slot(entry), directory_incarnation(entry))) continue;
    uint32_t high = shared->high.load();
    while (high < i + 1 && !shared->high.compare_exchange_weak(high, i + 1)) {
    }
    shared->ready[i / 64].fetch_or(bit);
  }
}

void Cq::forget(uint32_t index) {
  RingView* view = rings[index].get();
  const std::string name = ring_name(context->process->owner(), serial, view->entry);
  unlinkat(context->process->root().folder(), name.c_str(), 0);
  rings[index].reset();
  step("ring forgotten");
  shared->directory[index].store(0,
                                 std::memory_order_release);  // last: the index is anybody's again
}

void read_rings(Cq& cq, QueueId queue, std::set<uint32_t>* wqes) {
  for (uint32_t i = 0; i < kRingsPerCq; ++i) {
    if (cq.shared->directory[i].load(std::memory_order_acquire) == 0) continue;
    const RingView* view = cq.visit(i);
    if (view == nullptr) continue;
    const uint64_t tail = view->ring->tail.load(std::memory_order_acquire);
    if (tail - view->head > view->capacity) continue;  // damaged; poll finds out and drops it
    for (uint64_t at = view->head; at != tail; ++at) {
      const Entry entry = view->ring->entries[at & (view->capacity - 1)];
      if (entry.queue == queue) wqes->insert(entry.wqe);
    }
  }
}

namespace {

int poll_once(Cq& cq, int count, ibv_wc* wc, Extras* extras = nullptr) {
  std::lock_guard guard(cq.lock);
  int got = 0;
  const uint32_t queued = cq.send_count.load(std::memory_order_relaxed);
  if (queued != 0) {
    const uint32_t n = std::min(queued, static_cast<uint32_t>(count));
    for (uint32_t i = 0; i < n; ++i) {
      const Completion& one = cq.sends[cq.send_head];
      if (extras != nullptr) extras[got] = one.extras;
      wc[got++] = one.wc;
      cq.send_head = cq.send_head + 1 == cq.sends.size() ? 0 : cq.send_head + 1;
    }
    cq.send_count.store(queued - n);
  }
  const uint32_t words =
      (std::min(cq.shared->high.load(std::memory_order_relaxed), kRingsPerCq) + 63) / 64;
  if (words == 0) return got;
  if (cq.first_word >= words) cq.first_word = 0;
  for (uint32_t w = 0; w < words && got < count; ++w) {
    const uint32_t word = (cq.first_word + w) % words;
    Word& ready = cq.shared->ready[word];
    uint64_t bits = ready.load(std::memory_order_relaxed);
    while (bits != 0 && got < count) {
      const uint32_t bit = static_cast<uint32_t>(__builtin_ctzll(bits));
      bits &= bits - 1;
      if (word * 64 + bit < cq.rings.size()) {
        if (const RingView* known = cq.rings[word * 64 + bit].get()) {
          // Both while the bit's own line comes: the RMW lets nothing pass.
          __builtin_prefetch(&known->ring->tail);
          __builtin_prefetch(&known->ring->entries[known->head & (known->capacity - 1)]);
        }
      }
      ready.fetch_and(~(uint64_t{1} << bit));  // cleared before the tail is read (R9)
      step("bit cleared");
      got += drain(cq, word * 64 + bit, count - got, wc + got,
                   extras != nullptr ? extras + got : nullptr);
    }
  }
  cq.first_word = (cq.first_word + 1) % words;
  return got;
}

}  // namespace

namespace {

inline int poll_with(Cq& cq, int count, ibv_wc* wc, Extras* extras) {
  if (__builtin_expect(forked(), 0)) {
    return -fail(EPERM, "poll a CQ", "this process was forked from the one that owns the CQ");
  }
  if (has_work(*cq.context)) progress(*cq.context);
  int got = cq.maybe_ready() ? poll_once(cq, count, wc, extras) : 0;
  // Frames wait in the interface's ring until what came before them is polled and posted again.
  Feed* const feed = cq.context->feed.get();
  if (__builtin_expect(feed != nullptr, 0) && got == 0 && feed->pump(kFeedBatch) != 0 &&
      cq.maybe_ready())
    got = poll_once(cq, count, wc, extras);
  Process& process = *cq.context->process;
  // A CQ that is never empty must not keep a dead peer's WQEs for ever.
  const bool time_to_look =
      got != 0 && (cq.polls.fetch_add(1, std::memory_order_relaxed) & 255) == 255;
  if (got == 0 || time_to_look || process.death_check_requested()) {
    process.maybe_check_deaths(base::coarse_now_ns());
    if (got == 0 && cq.maybe_ready()) got = poll_once(cq, count, wc, extras);
    if (got == 0 && __builtin_expect(cq.in_error.load(std::memory_order_relaxed), 0)) {
      return -fail(EIO, "poll a CQ",
                   "it was overrun: it is smaller than what may complete into it at a time");
    }
  }
  return got;
}

}  // namespace

int poll_cq(ibv_cq* handle, int count, ibv_wc* wc) {
  return poll_with(Cq::of(handle), count, wc, nullptr);
}

int poll_one(Cq& cq, ibv_wc* wc, Extras* extras) {
  *extras = {};
  return poll_with(cq, 1, wc, extras);
}

int req_notify_cq(ibv_cq* handle, int solicited_only) {
  Cq& cq = Cq::of(handle);
  if (__builtin_expect(forked(), 0))
    return fail(EPERM, "arm a CQ", "this process was forked from the one that owns the CQ");
  if (cq.channel == nullptr) return 0;
  // A number that is new at each arming, so that a waker who read an older one can not clear this
  // (R7).
  const uint64_t number = (cq.context->process->next_number() << 1) | (solicited_only != 0 ? 1 : 0);
  cq.armed_here.store(number);
  cq.shared->armed.store(
      number);  // seq_cst: the caller polls after this, and reads the ready bits seq_cst
  step("armed");
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                  int comp_vector) {
  Cq* cq = make_cq(Context::of(context), cqe, cq_context, channel, comp_vector, {});
  return cq != nullptr ? cq->handle() : nullptr;
}

Cq* make_cq(Context& context, int64_t cqe, void* cq_context, ibv_comp_channel* channel,
            int64_t comp_vector, const CqOptions& options) {
  ibv_context* context_handle = context.handle();
  if (forked()) return fail_null(EPERM, "create a CQ", "this process was forked");
  if (cqe < 1 || cqe > kMaxCqe) {
    return fail_null(
        EINVAL, "create a CQ",
        base::format("cqe is %lld and must be 1 to %u", static_cast<long long>(cqe), kMaxCqe));
  }
  if (comp_vector < 0 || comp_vector >= context_handle->num_comp_vectors) {
    return fail_null(
        EINVAL, "create a CQ",
        base::format("comp_vector is %lld and must be 0", static_cast<long long>(comp_vector)));
  }
  Process& process = *context.process;
  auto cq = std::make_unique<Cq>();
  cq->context = &context;
  cq->channel = channel != nullptr ? &Channel::of(channel) : nullptr;
  cq->ex.context = context_handle;
  cq->ex.channel = channel;
  cq->ex.cq_context = cq_context;
  cq->ex.cqe = static_cast<int>(cqe);
  cq->sends.resize(static_cast<size_t>(cqe));
  cq->ignores_overrun = options.ignores_overrun;
  cq->single_threaded = options.single_threaded;
  cq->parent_domain = options.parent_domain;
  if (cq->parent_domain != nullptr) cq->parent_domain->users.fetch_add(1);
  pthread_mutex_init(&cq->ex.mutex, nullptr);
  pthread_cond_init(&cq->ex.cond, nullptr);

  std::lock_guard objects(process.objects());
  {
    std::lock_guard registry(process.registry());
    bool recycled = false;
    base::Result<Block> block =
        process.chunks().allocate({BlockShape::Kind::kCq}, sizeof(CqShared), &recycled);
    if (!block.ok()) {
      if (cq->parent_domain != nullptr) cq->parent_domain->users.fetch_sub(1);
      return fail_null(block.status());
    }
    cq->block = block.take();
    cq->shared = static_cast<CqShared*>(cq->block.address);
    cq->serial = process.next_number();
    // The directory of recycled memory stays as it is: late claims of stopped peers are found and
    // freed by visits.
    cq->shared->owner = process.owner();
    cq->shared->serial.store(cq->serial);
    cq->shared->channel = cq->channel != nullptr ? cq->channel->number : kNoChannel;
    cq->shared->armed.store(0);
  }
  cq->ex.handle = static_cast<uint32_t>(cq->serial);
  if (cq->channel != nullptr) {
    std::lock_guard lock(cq->channel->lock);
    cq->channel->cqs.push_back(cq.get());
    ++channel->refcnt;
  }
  context.objects.fetch_add(1, std::memory_order_relaxed);
  process.cqs.push_back(cq.get());
  return cq.release();
}

int resize_cq(ibv_cq* handle, int cqe) {
  if (forked()) return fail(EPERM, "resize a CQ", "this process was forked");
  Cq& cq = Cq::of(handle);
  if (cqe < 1 || static_cast<uint32_t>(cqe) > kMaxCqe) {
    return fail(EINVAL, "resize a CQ", base::format("cqe is %d and must be 1 to %u", cqe, kMaxCqe));
  }
  // Receive completions lie in the rings and count as well; they are not moved.
  const uint32_t held = cq.pending();
  std::vector<Completion> fresh(static_cast<size_t>(cqe));
  std::lock_guard guard(cq.lock);
  const uint32_t count = cq.send_count.load(std::memory_order_relaxed);
  if (std::max(held, count) > static_cast<uint32_t>(cqe)) {
    return fail(EINVAL, "resize a CQ",
                base::format("it holds %u completions, which are more than %d",
                             std::max(held, count), cqe));
  }
  for (uint32_t i = 0; i < count; ++i) fresh[i] = cq.sends[(cq.send_head + i) % cq.sends.size()];
  cq.sends.swap(fresh);  // the old memory goes after the lock
  cq.send_head = 0;
  cq.ex.cqe = cqe;
  return 0;
}

int destroy_cq(ibv_cq* handle) {
  if (forked()) return fail(EPERM, "destroy a CQ", "this process was forked");
  Cq* cq = &Cq::of(handle);
  Process& process = *cq->context->process;
  const uint32_t users = cq->users.load();
  if (users != 0)
    return fail(EBUSY, "destroy a CQ", base::format("%u QPs and SRQs still use it", users));
  {
    std::lock_guard objects(process.objects());
    std::erase(process.cqs, cq);
    if (cq->channel != nullptr) {
      std::lock_guard lock(cq->channel->lock);
      std::erase(cq->channel->cqs, cq);
      --cq->ex.channel->refcnt;
    }
    // First of all: whoever claims an entry from here on finds that the CQ has gone, and undoes it
    // (R22).
    cq->shared->serial.store(0);
    cq->shared->armed.store(0);
    std::lock_guard guard(cq->lock);
    for (uint32_t i = 0; i < kRingsPerCq; ++i) {
      if (cq->visit(i) == nullptr) continue;
      ibv_wc dropped[16];
      while (drain(*cq, i, 16, dropped) > 0) {  // WQEs of basic SRQs go back to them
      }
      if (cq->visit(i) != nullptr) cq->forget(i);
    }
    for (Word& ready : cq->shared->ready) ready.store(0);
  }
  retire_events(cq->handle());
  // As libibverbs does: whoever got an event may still use the handle until it has acknowledged it.
  pthread_mutex_lock(&cq->ex.mutex);
  while (cq->ex.comp_events_completed != cq->events_delivered)
    pthread_cond_wait(&cq->ex.cond, &cq->ex.mutex);
  pthread_mutex_unlock(&cq->ex.mutex);
  {
    std::lock_guard registry(process.registry());
    process.chunks().free({BlockShape::Kind::kCq}, cq->block.ref);
  }
  pthread_mutex_destroy(&cq->ex.mutex);
  pthread_cond_destroy(&cq->ex.cond);
  if (cq->parent_domain != nullptr) cq->parent_domain->users.fetch_sub(1);
  cq->context->objects.fetch_sub(1, std::memory_order_relaxed);
  delete cq;
  return 0;
}

void ack_cq_events(ibv_cq* handle, unsigned int count) {
  Cq& cq = Cq::of(handle);
  pthread_mutex_lock(&cq.ex.mutex);
  cq.ex.comp_events_completed += count;
  pthread_cond_broadcast(&cq.ex.cond);
  pthread_mutex_unlock(&cq.ex.mutex);
}

}  // namespace millrace::soft
