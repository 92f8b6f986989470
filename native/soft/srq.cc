#include "soft/srq.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <mutex>

#include "base/clock.h"
#include "soft/death.h"
#include "soft/error.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** How long destroy_srq() waits for initiators in the middle of a copy. A stopped one is left
 * behind (R6). */
constexpr uint64_t kQuiesceNs = 100'000'000;

}  // namespace

bool Srq::consume(uint32_t index, uint64_t taker, uint64_t* wr_id) {
  std::lock_guard guard(lock);
  if (index >= max_wr || outstanding[index] == 0) return false;
  if (words[index].load(std::memory_order_relaxed) != wqe_taken(taker)) return false;
  outstanding[index] = 0;
  *wr_id = wr_ids[index];
  uint32_t at = free_head + free_count;
  if (at >= max_wr) at -= max_wr;
  free_list[at] = index;
  ++free_count;
  if (limit != 0 && max_wr - free_count < limit) {
    limit = 0;  // one-shot (VERBS 2.12)
    raise_srq_event(&srq, IBV_EVENT_SRQ_LIMIT_REACHED);
  }
  return true;
}

void Srq::wake_parked() {
  for (uint32_t w = 0; w < kParkEntries / 64; ++w) {
    uint64_t bits = shared->parked[w].load();  // seq_cst, after POSTED and `posted` (R10)
    for (; bits != 0; bits &= bits - 1) {
      const uint32_t bit = static_cast<uint32_t>(__builtin_ctzll(bits));
      ParkEntry& entry = shared->park[w * 64 + bit];
      // The bit first: who parks stores the word and then sets the bit, so either we see the word
      // or the bit stays.
      shared->parked[w].fetch_and(~(uint64_t{1} << bit));
      uint64_t parked = entry.word.load();
      if (parked == 0) continue;
      const uint64_t who = entry.who.load();
      if (who != 0) {
        std::lock_guard registry(context->process->registry());
        const uint64_t owner = park_owner(who);
        auto peer = context->process->attach(owner_slot(owner), owner_incarnation(owner));
        if (peer.ok() && !peer.value()->dead()) {
          peer.value()->wake_now(park_channel(who));
        }
      }
      step("parked one woken");
      entry.word.compare_exchange_strong(parked, 0);  // by CAS: it may have parked anew
    }
  }
}

int post_srq_recv(ibv_srq* handle, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Srq& srq = Srq::of(handle);
  if (__builtin_expect(forked(), 0)) {
    *bad = wr;
    return fail(EPERM, "post a receive", "this process was forked from the one that owns the SRQ");
  }
  int error = 0;
  {
    std::lock_guard guard(srq.lock);
    const uint64_t posted = wqe_posted(srq.number);
    for (; wr != nullptr; wr = wr->next) {
      if (srq.free_count == 0) {
        error = ENOMEM;
        break;
      }
      if (wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > srq.max_sge) {
        error = EINVAL;
        break;
      }
      const uint32_t index = srq.free_list[srq.free_head];
      srq.free_head = srq.free_head + 1 == srq.max_wr ? 0 : srq.free_head + 1;
      --srq.free_count;
      Wqe& wqe = *reinterpret_cast<Wqe*>(srq.wqes + srq.stride * index);
      wqe.num_sge = static_cast<uint32_t>(wr->num_sge);
      for (int i = 0; i < wr->num_sge; ++i) {
        wqe.sge[i] = Sge{wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey};
      }
      srq.wr_ids[index] = wr->wr_id;
      srq.outstanding[index] = 1;
      // Release: pairs with the taker's acquire; it sees the elements.
      srq.words[index].store(posted, std::memory_order_release);
      step("posted");
    }
    srq.shared->posted.fetch_add(1);  // seq_cst: the fence of R10, and what waiters compare
  }
  srq.wake_parked();
  if (error != 0) *bad = wr;
  return error;
}

ibv_srq* create_srq(ibv_pd*, ibv_srq_init_attr*) {
  return fail_null(EOPNOTSUPP, "create a basic SRQ", "this device has XRC SRQs only, so far");
}

ibv_srq* create_srq_ex(ibv_context* context_handle, ibv_srq_init_attr_ex* attr) {
  if (forked()) return fail_null(EPERM, "create an SRQ", "this process was forked");
  const uint32_t need =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  if ((attr->comp_mask & need) != need || attr->srq_type != IBV_SRQT_XRC || attr->pd == nullptr ||
      attr->xrcd == nullptr || attr->cq == nullptr) {
    return fail_null(EINVAL, "create an SRQ", "an XRC SRQ needs its type, PD, XRC domain and CQ");
  }
  const uint32_t max_wr = attr->attr.max_wr;
  const uint32_t max_sge = attr->attr.max_sge == 0 ? 1 : attr->attr.max_sge;
  if (max_wr == 0 || max_wr > kMaxSrqWr || max_sge > kMaxSrqSge) {
    return fail_null(EINVAL, "create an SRQ",
                     base::format("max_wr %u (1 to %u), max_sge %u (at most %u)", max_wr, kMaxSrqWr,
                                  max_sge, kMaxSrqSge));
  }
  Context& context = Context::of(context_handle);
  Process& process = *context.process;
  Pd& pd = Pd::of(attr->pd);
  auto srq = std::make_unique<Srq>();
  srq->context = &context;
  srq->cq = &Cq::of(attr->cq);
  srq->xrcd = &Xrcd::of(attr->xrcd);
  srq->max_wr = max_wr;
  srq->max_sge = max_sge;
  srq->stride = wqe_stride(max_sge);
  srq->wr_ids.resize(max_wr);
  srq->outstanding.resize(max_wr);
  srq->free_list.resize(max_wr);
  for (uint32_t i = 0; i < max_wr; ++i) srq->free_list[i] = i;
  srq->free_count = max_wr;
  srq->srq.context = context_handle;
  srq->srq.srq_context = attr->srq_context;
  srq->srq.pd = attr->pd;
  pthread_mutex_init(&srq->srq.mutex, nullptr);
  pthread_cond_init(&srq->srq.cond, nullptr);

  std::lock_guard objects(process.objects());
  Root& root = process.root();
  {
    std::lock_guard registry(process.registry());
    bool recycled = false;
    base::Result<Block> block =
        process.chunks().allocate(BlockKind::kSrq, srq_bytes(max_wr, max_sge), &recycled);
    if (!block.ok()) return fail_null(block.status());
    srq->block = block.take();
  }
  const auto give_back = [&] {
    std::lock_guard registry(process.registry());
    process.chunks().free(BlockKind::kSrq, srq->block.ref);
  };
  const uint32_t number = root.claim_srq(process.incarnation());
  if (number == 0) {
    give_back();
    return fail_null(ENOMEM, "create an SRQ",
                     base::format("all %u SRQ numbers of the fabric are in use", root.srqs()));
  }
  step("srq number claimed");
  srq->number = number;
  srq->srq.handle = number;
  std::byte* memory = static_cast<std::byte*>(srq->block.address);
  SrqShared& shared = *reinterpret_cast<SrqShared*>(memory);
  srq->shared = &shared;
  srq->words = reinterpret_cast<Word*>(memory + srq_words_offset());
  srq->wqes = memory + srq_wqes_offset(max_wr);
  shared.owner = process.owner();
  shared.srqn = number;
  shared.max_wr = max_wr;
  shared.max_sge = max_sge;
  shared.pd = pd.number;
  shared.words_offset = static_cast<uint32_t>(srq_words_offset());
  shared.wqes_offset = static_cast<uint32_t>(srq_wqes_offset(max_wr));
  shared.cq = srq->cq->block.ref;
  shared.hint.store(0, std::memory_order_relaxed);
  for (uint32_t i = 0; i < max_wr; ++i) srq->words[i].store(kWqeEmpty, std::memory_order_relaxed);

  process.srqs.push_back(srq.get());
  process.srq_table[number % kSrqs].store(srq.get(), std::memory_order_release);
  srq->cq->users.fetch_add(1);
  srq->xrcd->users.fetch_add(1);
  pd.users.fetch_add(1);
  context.objects.fetch_add(1, std::memory_order_relaxed);

  SrqRecord& record = root.srq(number % root.srqs());
  record.owner = process.owner();
  record.xrcd = srq->xrcd->key;
  record.srq = srq->block.ref;
  // Release: pairs with connect(); who finds the number finds all of the above.
  record.word.store(record_word(number, Life::kLive, 0, process.incarnation()));
  step("srq live");
  attr->attr.max_wr = max_wr;
  attr->attr.max_sge = max_sge;
  return &srq.release()->srq;
}

int modify_srq(ibv_srq* handle, ibv_srq_attr* attr, int mask) {
  Srq& srq = Srq::of(handle);
  if (forked()) return fail(EPERM, "modify an SRQ", "this process was forked");
  if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0)
    return fail(EINVAL, "modify an SRQ", "unknown attribute in the mask");
  if ((mask & IBV_SRQ_MAX_WR) != 0)
    return fail(EOPNOTSUPP, "modify an SRQ", "this device does not resize SRQs");
  if ((mask & IBV_SRQ_LIMIT) == 0) return 0;
  if (attr->srq_limit > srq.max_wr) {
    return fail(EINVAL, "modify an SRQ",
                base::format("limit %u is above max_wr %u", attr->srq_limit, srq.max_wr));
  }
  std::lock_guard guard(srq.lock);
  srq.limit = attr->srq_limit;
  if (srq.limit != 0 && srq.max_wr - srq.free_count < srq.limit) {
    srq.limit = 0;
    raise_srq_event(handle, IBV_EVENT_SRQ_LIMIT_REACHED);
  }
  return 0;
}

int query_srq(ibv_srq* handle, ibv_srq_attr* attr) {
  Srq& srq = Srq::of(handle);
  if (forked()) return fail(EPERM, "query an SRQ", "this process was forked");
  std::lock_guard guard(srq.lock);
  attr->max_wr = srq.max_wr;
  attr->max_sge = srq.max_sge;
  attr->srq_limit = srq.limit;
  return 0;
}

int get_srq_num(ibv_srq* handle, uint32_t* number) {
  *number = Srq::of(handle).number;
  return 0;
}

int destroy_srq(ibv_srq* handle) {
  if (forked()) return fail(EPERM, "destroy an SRQ", "this process was forked");
  Srq* srq = &Srq::of(handle);
  Process& process = *srq->context->process;
  Root& root = process.root();
  uint64_t live = record_word(srq->number, Life::kLive, 0, process.incarnation());
  root.srq(srq->number % root.srqs())
      .word.compare_exchange_strong(live, record_word(srq->number, Life::kFree, 0, 0));
  step("srq number freed");
  for (uint32_t i = 0; i < srq->max_wr; ++i) {
    uint64_t word = wqe_posted(srq->number);
    srq->words[i].compare_exchange_strong(word, kWqeClosed);
  }
  // Who has taken a WQE is copying into a buffer of ours: wait for its commit, but not for somebody
  // who is stopped.
  const uint64_t deadline = base::now_ns() + kQuiesceNs;
  bool quiet = copies_are_done(process, *srq);
  while (!quiet && base::now_ns() < deadline) {
    process.check_deaths();
    const timespec pause = {0, 100'000};
    nanosleep(&pause, nullptr);
    quiet = copies_are_done(process, *srq);
  }
  {
    std::lock_guard objects(process.objects());
    std::erase(process.srqs, srq);
    process.srq_table[srq->number % kSrqs].store(nullptr, std::memory_order_release);
    std::lock_guard polls(srq->cq->lock);  // a poll that still uses it is over when we have this
  }
  srq->shared->posted.fetch_add(1);
  srq->wake_parked();  // their WRs fail now
  retire_events(&srq->srq);
  if (quiet) {
    for (uint32_t i = 0; i < kParkEntries; ++i) {
      // Waiters find the number gone and let go of the entry themselves; recycled memory keeps
      // those who have not yet.
      srq->shared->park[i].word.store(0);
    }
    std::lock_guard registry(process.registry());
    process.chunks().free(BlockKind::kSrq, srq->block.ref);
  }
  // else: the memory stays with this incarnation, unused, for whoever still is inside (R6)
  srq->cq->users.fetch_sub(1);
  srq->xrcd->users.fetch_sub(1);
  Pd::of(srq->srq.pd).users.fetch_sub(1);
  srq->context->objects.fetch_sub(1, std::memory_order_relaxed);
  pthread_mutex_destroy(&srq->srq.mutex);
  pthread_cond_destroy(&srq->srq.cond);
  delete srq;
  return 0;
}

}  // namespace millrace::soft
