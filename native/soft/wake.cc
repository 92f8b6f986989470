#include "soft/wake.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <iterator>
#include <string>

#include "base/clock.h"
#include "soft/cq.h"
#include "soft/device.h"
#include "soft/feed.h"
#include "soft/initiator.h"
#include "soft/process.h"

namespace millrace::soft {

base::Result<WakeFifo> WakeFifo::create(Process& process) {
  WakeFifo fifo;
  {
    std::lock_guard registry(process.registry());
    fifo.number_ = process.next_channel();
  }
  if (fifo.number_ >= kNoChannel) {
    return base::Status::error(ENOBUFS, "create a wake-up FIFO",
                               base::format("a process can create %u in its life", kNoChannel));
  }
  const int folder = process.root().folder();
  const std::string name = wake_name(process.slot(), process.incarnation(), fifo.number_);
  const auto os_failure = [&] {
    const int error = errno;
    unlinkat(folder, name.c_str(), 0);
    if (error == ENOENT) {
      return base::Status::error(error, "use the fabric folder",
                                 "somebody has removed it. Who uses it still does; end all of them "
                                 "before others can join");
    }
    return base::Status::error(error, "create a wake-up FIFO", name + ": " + strerror(error));
  };
  if (mkfifoat(folder, name.c_str(), 0600) != 0) return os_failure();
  fifo.fd_ = base::Fd(openat(folder, name.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!fifo.fd_.valid()) return os_failure();
  return fifo;
}

void WakeFifo::remove(Process& process) {
  if (!fd_.valid()) return;
  const std::string name = wake_name(process.slot(), process.incarnation(), number_);
  unlinkat(process.root().folder(), name.c_str(), 0);
  fd_.reset();
}

void write_wake(int fd, const WakeUp& wake) {
  // At most PIPE_BUF bytes: all of them or none.
  if (fd >= 0) (void)!write(fd, &wake, sizeof(wake));
}

size_t WakeFifo::read(WakeUp* wakes, size_t count) const {
  const ssize_t bytes = ::read(fd_.get(), wakes, count * sizeof(WakeUp));
  return bytes <= 0 ? 0 : static_cast<size_t>(bytes) / sizeof(WakeUp);
}

bool WakeFifo::drain() const {
  WakeUp wakes[64];
  bool any = false;
  for (;;) {
    const size_t n = read(wakes, std::size(wakes));
    any |= n != 0;
    if (n < std::size(wakes)) return any;
  }
}

base::Status Alarm::open() {
  fd_ = base::Fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!fd_.valid()) return base::Status::error(errno, "create a timer", strerror(errno));
  return base::Status::success();
}

void Alarm::arm() {
  const uint64_t ns = *times_.begin();
  itimerspec spec = {};
  spec.it_value.tv_sec = static_cast<time_t>(ns / 1'000'000'000u);
  spec.it_value.tv_nsec = static_cast<long>(ns % 1'000'000'000u);
  timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

void Alarm::at(uint64_t ns) {
  const uint64_t rounded = ns / kGrainNs * kGrainNs + kGrainNs;
  std::lock_guard guard(lock_);
  const auto [place, fresh] = times_.insert(rounded);
  if (fresh && place == times_.begin()) arm();
}

void Alarm::drain() {
  std::lock_guard guard(lock_);
  uint64_t ticks;
  if (::read(fd_.get(), &ticks, sizeof(ticks)) != sizeof(ticks)) return;
  times_.erase(times_.begin(), times_.upper_bound(base::now_ns()));
  if (!times_.empty()) arm();
}

void serve(Context& context, const Woken& woken) {
  if (woken.work) context.wake.drain();
  if (woken.time) {
    context.alarm.drain();
    wake_postponed(*context.process);
  }
  if (woken.presence) context.process->check_deaths();
  if (woken.frames && context.feed != nullptr) context.feed->woken();
  progress(context);
}

}  // namespace millrace::soft
