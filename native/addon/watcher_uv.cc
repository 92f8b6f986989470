#include <errno.h>
#include <string.h>

#include <cstdlib>
#include <utility>

#include "addon/environment.h"
#include "addon/uv_api.h"
#include "addon/watcher.h"

namespace millrace::addon {
namespace {

/**
 * The libuv handle and its owner have two lives: uv_poll_stop takes effect at once (so the
 * descriptor may be closed), but the handle's memory is libuv's until the close callback, which the
 * environment waits for at its end.
 */
class UvWatcher final : public Watcher {
 public:
  UvWatcher(Environment& environment, napi_value callback)
      : environment_(environment), listener_(environment.env(), callback) {}
  ~UvWatcher() override { close(); }

  base::Status init(int fd) {
    uv_loop_s* loop = nullptr;
    if (napi_get_uv_event_loop(environment_.env(), &loop) != napi_ok || loop == nullptr) {
      return base::Status::error(ENOTSUP, "napi_get_uv_event_loop");
    }
    void* handle = calloc(1, uv_.handle_size(UvApi::kPollType));
    if (handle == nullptr) return base::Status::error(ENOMEM, "allocate uv_poll_t");
    const int result = uv_.poll_init(loop, handle, fd);
    if (result < 0) {
      free(handle);
      return base::Status::error(-result, "uv_poll_init", strerror(-result));
    }
    handle_ = handle;
    uv_.set_data(handle_, this);
    uv_.unref(handle_);
    return base::Status::success();
  }

  base::Status watch(bool on) override {
    if (handle_ == nullptr) return base::Status::success();
    const int result =
        on ? uv_.poll_start(handle_, UvApi::kReadable, on_readable) : uv_.poll_stop(handle_);
    if (result < 0) return base::Status::error(-result, "uv_poll_start", strerror(-result));
    return base::Status::success();
  }

  void ref(bool on) override {
    if (handle_ == nullptr) return;
    if (on) {
      uv_.ref(handle_);
    } else {
      uv_.unref(handle_);
    }
  }

  void close() override {
    listener_.reset();
    if (handle_ == nullptr) return;
    void* handle = std::exchange(handle_, nullptr);
    uv_.poll_stop(handle);
    uv_.set_data(handle, &environment_);
    environment_.closing_started();
    uv_.close(handle, on_closed);
  }

  void abandon() override {}

 private:
  static void on_readable(void* handle, int status, int events) {
    // An error of the descriptor is for the poll that follows to find; the callback runs either
    // way.
    auto* self = static_cast<UvWatcher*>(find_uv()->get_data(handle));
    self->listener_.call();
  }

  static void on_closed(void* handle) {
    auto* environment = static_cast<Environment*>(find_uv()->get_data(handle));
    free(handle);
    environment->closing_finished();
  }

  Environment& environment_;
  const UvApi& uv_ = *find_uv();
  Listener listener_;
  void* handle_ = nullptr;
};

}  // namespace

base::Result<std::unique_ptr<Watcher>> make_uv_watcher(Environment& environment, int fd,
                                                       napi_value callback) {
  auto watcher = std::make_unique<UvWatcher>(environment, callback);
  base::Status status = watcher->init(fd);
  if (!status.ok()) return status;
  return std::unique_ptr<Watcher>(std::move(watcher));
}

}  // namespace millrace::addon
