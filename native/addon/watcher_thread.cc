#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "addon/environment.h"
#include "addon/watcher.h"
#include "base/files.h"

namespace millrace::addon {
namespace {

/**
 * A thread polls the descriptor and calls through a thread-safe function. It touches no JavaScript
 * object (I6) and is joined before its environment ends: by close(), or by the finalizer of the
 * thread-safe function, whichever comes first when an environment is torn down.
 */
class ThreadWatcher final : public Watcher {
 public:
  ThreadWatcher(Environment& environment, int fd, napi_value callback)
      : env_(environment.env()), fd_(fd), listener_(environment.env(), callback) {}
  ~ThreadWatcher() override { close(); }

  base::Status init() {
    control_ = base::Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!control_.valid()) return base::Status::error(errno, "eventfd", strerror(errno));
    napi_value name;
    napi_create_string_utf8(env_, "millrace", NAPI_AUTO_LENGTH, &name);
    // `link_` outlives this object when a call is still queued at close().
    link_ = new Link{this};
    if (napi_create_threadsafe_function(env_, nullptr, nullptr, name, 0, 1, link_, on_finalized,
                                        link_, on_readable, &function_) != napi_ok) {
      delete std::exchange(link_, nullptr);
      return base::Status::error(ENOMEM, "napi_create_threadsafe_function");
    }
    napi_unref_threadsafe_function(env_, function_);
    const int error = pthread_create(&thread_, nullptr, run, this);
    if (error != 0) return base::Status::error(error, "pthread_create", strerror(error));
    running_ = true;
    return base::Status::success();
  }

  base::Status watch(bool on) override {
    if (!running_) return base::Status::success();
    state_.store(on ? kOn : kOff);
    apply_ref(on);
    kick();
    return base::Status::success();
  }

  void ref(bool on) override {
    referenced_ = on;
    if (running_) apply_ref(state_.load() != kOff);
  }

  void close() override {
    listener_.reset();
    join();
    if (link_ != nullptr) {
      link_->owner = nullptr;
      link_ = nullptr;
      napi_release_threadsafe_function(function_, napi_tsfn_abort);
    }
  }

  void abandon() override { join(); }

 private:
  enum State : int { kOff, kOn, kFired, kQuit };
  struct Link {
    ThreadWatcher* owner;
  };

  static void* run(void* argument) {
    static_cast<ThreadWatcher*>(argument)->loop();
    return nullptr;
  }

  void loop() {
    // Signals are the program's, and Node.js handles them on its own threads.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    while (true) {
      const int state = state_.load();
      if (state == kQuit) return;
      pollfd entries[2] = {{control_.get(), POLLIN, 0}, {state == kOn ? fd_ : -1, POLLIN, 0}};
      if (poll(entries, 2, -1) < 0 && errno != EINTR) return;
      if ((entries[0].revents & POLLIN) != 0) {
        uint64_t ignored;
        (void)!read(control_.get(), &ignored, sizeof(ignored));
      }
      int expected = kOn;
      if (entries[1].revents != 0 && state_.compare_exchange_strong(expected, kFired)) {
        napi_call_threadsafe_function(function_, nullptr, napi_tsfn_nonblocking);
      }
    }
  }

  static void on_readable(napi_env env, napi_value, void* context, void*) {
    auto* link = static_cast<Link*>(context);
    if (env == nullptr || link->owner == nullptr) return;
    ThreadWatcher* self = link->owner;
    if (self->state_.load() != kFired) return;  // stopped in the meantime
    self->listener_.call();
    self = link->owner;
    int expected = kFired;
    if (self != nullptr && self->state_.compare_exchange_strong(expected, kOn)) self->kick();
  }

  static void on_finalized(napi_env, void* data, void*) {
    auto* link = static_cast<Link*>(data);
    if (link->owner != nullptr) {
      link->owner->join();
      link->owner->link_ = nullptr;
    }
    delete link;
  }

  void join() {
    if (!running_) return;
    running_ = false;
    state_.store(kQuit);
    kick();
    pthread_join(thread_, nullptr);
  }

  void kick() {
    const uint64_t one = 1;
    (void)!write(control_.get(), &one, sizeof(one));
  }

  void apply_ref(bool on) {
    if (link_ == nullptr) return;
    if (on && referenced_) {
      napi_ref_threadsafe_function(env_, function_);
    } else {
      napi_unref_threadsafe_function(env_, function_);
    }
  }

  napi_env env_;
  int fd_;
  Listener listener_;
  base::Fd control_;
  Link* link_ = nullptr;
  napi_threadsafe_function function_ = nullptr;
  pthread_t thread_ = {};
  bool running_ = false;
  bool referenced_ = false;
  std::atomic<int> state_{kOff};
};

}  // namespace

base::Result<std::unique_ptr<Watcher>> make_thread_watcher(Environment& environment, int fd,
                                                           napi_value callback) {
  auto watcher = std::make_unique<ThreadWatcher>(environment, fd, callback);
  base::Status status = watcher->init();
  if (!status.ok()) return status;
  return std::unique_ptr<Watcher>(std::move(watcher));
}

}  // namespace millrace::addon
