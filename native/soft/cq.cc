#include "soft/cq.h"

#include <errno.h>
#include <pthread.h>

#include <algorithm>
#include <mutex>

#include "soft/channel.h"
#include "soft/error.h"
#include "soft/process.h"
#include "soft/step.h"

namespace millrace::soft {

void Cq::notify_own(bool solicited) {
  uint64_t armed = shared->armed.load();
  if (armed == 0) return;
  if ((armed & 1) != 0 && !solicited) return;
  if (channel != nullptr) channel->wake({serial, armed});
  shared->armed.compare_exchange_strong(armed, 0);
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
      while (cq->drain(i, 16, dropped) > 0) {  // WQEs of basic SRQs go back to them
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
