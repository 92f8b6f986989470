#include "soft/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "base/clock.h"
#include "soft/cq.h"
#include "soft/error.h"
#include "soft/feed.h"
#include "soft/initiator.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** Every armed CQ of the channel has an event: not all wake-ups are known. Needs its lock. */
void all_due(Channel& channel) {
  for (Cq* cq : channel.cqs) cq->event_due |= cq->armed_here.load() != 0;
}

/**
 * Takes the wake-ups and notes whose they are. The waker writes before it clears `armed`, so a
 * wake-up counts even if that has not happened yet, and it is all that counts: one for an arming
 * whose event was reported is a second waker's, or was overtaken. Needs the channel's lock.
 */
void take_wake_ups(Channel& channel) {
  WakeUp wakes[64];
  size_t total = 0;
  for (size_t n = std::size(wakes); n == std::size(wakes); total += n) {
    n = channel.fifo.read(wakes, std::size(wakes));
    for (size_t i = 0; i < n; ++i) {
      if (wakes[i].cq == kEveryCq) all_due(channel);
      for (Cq* cq : channel.cqs) {
        if (cq->serial != wakes[i].cq) continue;
        cq->event_due |= wakes[i].arming > cq->reported && cq->armed_here.load() != 0;
      }
    }
  }
  if (total >= WakeFifo::kCapacity) all_due(channel);
}

/**
 * Whether moderation holds an event back that is due. Looks at what waits, and sets the alarm for
 * the end of the period. Needs the channel's lock.
 */
bool held_back(Cq& cq) {
  Moderation& moderation = cq.moderation;
  const uint32_t count = moderation.count.load(std::memory_order_relaxed);
  const uint64_t period = uint64_t{moderation.period_us.load(std::memory_order_relaxed)} * 1000;
  if (count == 0 || period == 0) return false;
  const uint64_t now = base::now_ns();
  if (moderation.since == 0) moderation.since = now;
  if (now - moderation.since >= period || cq.pending() >= count) return false;
  cq.context->alarm.at(moderation.since + period);
  return true;
}

/** The next CQ with an event, disarmed and counted; null if there is none. Needs the channel's
 * lock. */
Cq* take_event(Channel& channel) {
  const size_t n = channel.cqs.size();
  Cq* found = nullptr;
  for (size_t i = 0; i < n; ++i) {
    const size_t at = (channel.next + i) % n;
    if (!channel.cqs[at]->event_due || held_back(*channel.cqs[at])) continue;
    if (found != nullptr) {
      channel.wake();  // another one is left: the descriptor stays readable
      break;
    }
    found = channel.cqs[at];
  }
  if (found == nullptr) return nullptr;
  found->moderation.since = 0;
  channel.next = (channel.next + 1) % n;
  uint64_t armed = found->armed_here.exchange(0);
  found->reported = std::max(found->reported, armed);
  found->event_due = false;
  found->shared->armed.compare_exchange_strong(armed, 0);
  pthread_mutex_lock(&found->ex.mutex);
  ++found->events_delivered;
  pthread_mutex_unlock(&found->ex.mutex);
  return found;
}

/** What a channel's poll set is over; the numbers are its entries' data. */
constexpr uint32_t kSources = 5;

/** Waits at most `ms` (-1: for ever) until something behind the channel is readable; EINTR finds
 * nothing. False with errno: it can't be watched. */
bool look(Channel& channel, int ms, Woken* woken) {
  epoll_event events[kSources];
  const int n = epoll_wait(channel.poll_set.get(), events, kSources, ms);
  *woken = {};
  if (n < 0) return errno == EINTR;
  bool own = false;  // its wake-ups are taken in any case: serve() may make some
  bool* const flags[kSources] = {&own, &woken->work, &woken->time, &woken->presence,
                                 &woken->frames};
  for (int i = 0; i < n; ++i) *flags[events[i].data.u32 % kSources] = true;
  return true;
}

}  // namespace

ibv_comp_channel* create_comp_channel(ibv_context* handle) {
  if (forked()) return fail_null(EPERM, "create a completion channel", "this process was forked");
  Context& context = Context::of(handle);
  Process& process = *context.process;
  auto channel = std::make_unique<Channel>();
  channel->context = &context;
  base::Result<WakeFifo> fifo = WakeFifo::create(process);
  if (!fifo.ok()) return fail_null(fifo.status());
  channel->fifo = fifo.take();
  channel->number = channel->fifo.number();
  const auto os_failure = [&] {
    const int error = errno;
    channel->fifo.remove(process);
    return fail_null(error, "create a completion channel", strerror(error));
  };
  channel->poll_set = base::Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!channel->poll_set.valid()) return os_failure();
  const int fds[kSources] = {channel->fifo.fd(), context.wake.fd(), context.alarm.fd(),
                             process.presence_fd(),
                             context.feed != nullptr ? context.feed->fd() : -1};
  for (uint32_t i = 0; i < kSources; ++i) {
    if (fds[i] < 0) continue;
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u32 = i;
    if (epoll_ctl(channel->poll_set.get(), EPOLL_CTL_ADD, fds[i], &event) != 0) return os_failure();
  }
  channel->channel.context = handle;
  channel->channel.fd = channel->poll_set.get();
  {
    std::lock_guard lock(context.qps_lock);
    context.channels.push_back(channel.get());
  }
  context.objects.fetch_add(1, std::memory_order_relaxed);
  return &channel.release()->channel;
}

int destroy_comp_channel(ibv_comp_channel* handle) {
  if (forked()) return fail(EPERM, "destroy a completion channel", "this process was forked");
  Channel* channel = &Channel::of(handle);
  Context& context = *channel->context;
  Process& process = *context.process;
  {
    std::lock_guard objects(process.objects());
    std::lock_guard lock(context.qps_lock);
    std::lock_guard own(channel->lock);
    if (!channel->cqs.empty()) {
      return fail(EBUSY, "destroy a completion channel",
                  base::format("%zu CQs still use it", channel->cqs.size()));
    }
    std::erase(context.channels, channel);
  }
  channel->fifo.remove(process);
  context.objects.fetch_sub(1, std::memory_order_relaxed);
  delete channel;
  return 0;
}

int get_cq_event(ibv_comp_channel* handle, ibv_cq** cq, void** cq_context) {
  Channel& channel = Channel::of(handle);
  // Of the context's sources only what is readable is read: each call counts for who has slept.
  Woken woken;
  if (!look(channel, 0, &woken)) return -1;
  for (;;) {
    if (forked()) {
      fail(EPERM, "wait for a completion event", "this process was forked");
      return -1;
    }
    // Deaths first: they may wake this channel.
    serve(*channel.context, woken);
    {
      std::lock_guard lock(channel.lock);
      take_wake_ups(channel);
      if (Cq* found = take_event(channel)) {
        *cq = found->handle();
        *cq_context = found->ex.cq_context;
        return 0;
      }
    }
    const int flags = fcntl(channel.poll_set.get(), F_GETFL);
    if (flags >= 0 && (flags & O_NONBLOCK) != 0) {
      errno = EAGAIN;
      return -1;
    }
    if (!look(channel, -1, &woken)) return -1;
  }
}

}  // namespace millrace::soft
