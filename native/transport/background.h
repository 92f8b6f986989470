#pragma once

#include <pthread.h>

#include <atomic>
#include <functional>

namespace millrace::transport {

/**
 * Work that nobody waits for, on a thread of its own without signals, which are for the program's
 * own threads. Of ordinary priority: whoever stops it waits for it, on a busy machine too.
 */
class Background {
 public:
  /** Ends soon when `stop` is set. */
  using Task = std::function<void(const std::atomic<bool>& stop)>;

  /** Begins at once. What the task refers to must outlive this. */
  explicit Background(Task task);
  /** stop() */
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /** Stops it and waits until it has ended. */
  void stop();
  /** False where the system has no other thread to give: nothing will be done. */
  bool started() const { return started_; }
  /** Whether it has ended by itself, and all that it did can be seen. Any thread. */
  bool done() const { return done_.load(std::memory_order_acquire); }

 private:
  static void* run(void* self);

  const Task task_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> done_{false};
  bool started_ = false;
  bool joined_ = false;
  pthread_t thread_{};
};

}  // namespace millrace::transport
