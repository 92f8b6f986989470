#include "soft/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "soft/cq.h"
#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** Reads the wake-ups away; true if there was one. */
bool drain_fifo(int fd) {
  char bytes[512];
  bool any = false;
  for (;;) {
    const ssize_t n = read(fd, bytes, sizeof(bytes));
    if (n <= 0) return any;
    any = true;
    if (n < static_cast<ssize_t>(sizeof(bytes))) return true;
  }
}

/**
 * Whether this CQ has an event that was not reported yet. The waker writes the FIFO before it
 * clears `armed`, so `armed` alone does not tell: what is ready counts too. The second may report
 * an event for completions that were there before the arming, which verbs allows.
 */
bool event_due(Cq& cq, bool woken) {
  const uint64_t armed_here = cq.armed_here.load();
  if (armed_here == 0) return false;
  if (cq.shared->armed.load() != armed_here) return true;
  // Whoever wakes writes the FIFO and then clears `armed`: between the two a poll may have emptied
  // the CQ. The wake-up counts all the same, or its arming would be cleared without an event. An
  // event too many is allowed.
  if (woken) return true;
  const bool solicited_only = (armed_here & 1) != 0;
  return !solicited_only && cq.maybe_ready();
}

/** The next CQ with an event, disarmed and counted; null if there is none. Needs the channel's
 * lock. */
Cq* take_event(Channel& channel, bool woken) {
  const size_t n = channel.cqs.size();
  Cq* found = nullptr;
  for (size_t i = 0; i < n; ++i) {
    const size_t at = (channel.next + i) % n;
    if (!event_due(*channel.cqs[at], woken)) continue;
    if (found != nullptr) {
      channel.wake();  // another one is left: the descriptor stays readable
      break;
    }
    found = channel.cqs[at];
  }
  if (found == nullptr) return nullptr;
  channel.next = (channel.next + 1) % n;
  uint64_t armed = found->armed_here.exchange(0);
  found->shared->armed.compare_exchange_strong(armed, 0);
  pthread_mutex_lock(&found->ex.mutex);
  ++found->events_delivered;
  pthread_mutex_unlock(&found->ex.mutex);
  return found;
}

}  // namespace

void Channel::wake() {
  const char byte = 1;
  (void)!write(fifo.get(), &byte, 1);
}

void Channel::wake_at(uint64_t ns) {
  itimerspec spec = {};
  spec.it_value.tv_sec = static_cast<time_t>(ns / 1'000'000'000u);
  spec.it_value.tv_nsec = static_cast<long>(ns % 1'000'000'000u);
  if (ns == 0) spec.it_value.tv_nsec = 1;
  timerfd_settime(timer.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

ibv_comp_channel* create_comp_channel(ibv_context* handle) {
  if (forked()) return fail_null(EPERM, "create a completion channel", "this process was forked");
  Context& context = Context::of(handle);
  Process& process = *context.process;
  auto channel = std::make_unique<Channel>();
  channel->context = &context;
  std::string name;
  {
    std::lock_guard registry(process.registry());
    channel->number = process.next_channel();
  }
  if (channel->number >= kNoChannel) {
    return fail_null(EMFILE, "create a completion channel",
                     base::format("a process can create %u in its life", kNoChannel));
  }
  name = wake_name(process.slot(), process.incarnation(), channel->number);
  const auto os_failure = [&](const char* what) {
    const int error = errno;
    unlinkat(process.root().folder(), name.c_str(), 0);
    return fail_null(error, what, name + ": " + strerror(error));
  };
  if (mkfifoat(process.root().folder(), name.c_str(), 0600) != 0)
    return os_failure("create a wake-up FIFO");
  channel->fifo = base::Fd(
      openat(process.root().folder(), name.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!channel->fifo.valid()) return os_failure("open a wake-up FIFO");
  channel->timer = base::Fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!channel->timer.valid()) return os_failure("create a timer");
  channel->poll_set = base::Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!channel->poll_set.valid()) return os_failure("create a completion channel");
  for (int fd : {channel->fifo.get(), channel->timer.get(), process.presence_fd()}) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(channel->poll_set.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      return os_failure("create a completion channel");
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
  unlinkat(process.root().folder(),
           wake_name(process.slot(), process.incarnation(), channel->number).c_str(), 0);
  context.objects.fetch_sub(1, std::memory_order_relaxed);
  delete channel;
  return 0;
}

int get_cq_event(ibv_comp_channel* handle, ibv_cq** cq, void** cq_context) {
  Channel& channel = Channel::of(handle);
  for (;;) {
    if (forked()) {
      fail(EPERM, "wait for a completion event", "this process was forked");
      return -1;
    }
    bool woken = drain_fifo(channel.fifo.get());
    uint64_t ticks;
    (void)!read(channel.timer.get(), &ticks, sizeof(ticks));
    epoll_event event;
    if (epoll_wait(channel.context->process->presence_fd(), &event, 1, 0) > 0) {
      channel.context->process->check_deaths();
      woken |= drain_fifo(channel.fifo.get());
    }
    // A wake-up may be for WRs that wait, and they may complete now.
    progress(*channel.context);
    {
      std::lock_guard lock(channel.lock);
      if (Cq* found = take_event(channel, woken)) {
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
    if (epoll_wait(channel.poll_set.get(), &event, 1, -1) < 0 && errno != EINTR) return -1;
  }
}

}  // namespace millrace::soft
