#include "transport/background.h"

#include <signal.h>

#include <utility>

namespace millrace::transport {

Background::Background(Task task) : task_(std::move(task)) {
  // A new thread inherits the mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  started_ = pthread_create(&thread_, nullptr, run, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void* Background::run(void* self) {
  auto& background = *static_cast<Background*>(self);
  background.task_(background.stop_);
  // Pairs with done(): who sees it sees what was done.
  if (!background.stop_.load(std::memory_order_relaxed))
    background.done_.store(true, std::memory_order_release);
  return nullptr;
}

Background::~Background() { stop(); }

void Background::stop() {
  stop_.store(true, std::memory_order_relaxed);
  if (std::exchange(joined_, true) || !started_) return;
  pthread_join(thread_, nullptr);
}

}  // namespace millrace::transport
