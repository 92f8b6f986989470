#include "addon/environment.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "addon/errors.h"
#include "addon/presence.h"

namespace millrace::addon {
namespace {

/** The environments of this process, for its exit. Never destroyed: exit handlers still use it. */
struct Registry {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  std::vector<Environment*> environments;
  std::atomic<pid_t> pid{0};
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

class Guard {
 public:
  Guard() { pthread_mutex_lock(&registry().mutex); }
  ~Guard() { pthread_mutex_unlock(&registry().mutex); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
};

bool has_global(napi_env env, const char* name) {
  napi_value global;
  bool found = false;
  napi_get_global(env, &global);
  napi_has_named_property(env, global, name, &found);
  return found;
}

}  // namespace

Environment* Environment::create(napi_env env) {
  auto* self = new Environment(env);
  self->host_is_node_ = !has_global(env, "Bun") && !has_global(env, "Deno");
  const auto finalize = [](napi_env, void* data, void*) { delete static_cast<Environment*>(data); };
  if (napi_set_instance_data(env, self, finalize, nullptr) != napi_ok) {
    delete self;
    return nullptr;
  }
  if (napi_add_async_cleanup_hook(env, on_cleanup, self, &self->hook_) != napi_ok) return nullptr;
  const Guard guard;
  registry().environments.push_back(self);
  return self;
}

Environment::~Environment() {
  const Guard guard;
  std::erase(registry().environments, this);
}

int32_t Environment::add(std::unique_ptr<OpenHandle> open, bool is_member) {
  {
    const Guard guard;
    // After the device's own exit handler, which its first use has registered: ours must run before
    // it.
    if (registry().pid == 0) atexit(on_exit);
    registry().pid = getpid();
  }
  uint32_t index;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (slots_.size() < kIndexMask) {
    index = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    return 0;
  }
  Slot& slot = slots_[index];
  ++slot.generation;
  slot.handle = static_cast<int32_t>(slot.generation << kIndexBits | index);
  slot.is_member = is_member;
  slot.open = std::move(open);
  return slot.handle;
}

std::unique_ptr<OpenHandle> Environment::remove(int32_t handle) {
  if (find<OpenHandle>(handle) == nullptr) return nullptr;
  const uint32_t index = static_cast<uint32_t>(handle) & kIndexMask;
  Slot& slot = slots_[index];
  // A slot whose generations are used up is retired: no handle is ever the same as an earlier one.
  if (slot.generation + 1 < kGenerations) free_.push_back(index);
  return std::move(slot.open);
}

int32_t Environment::add_presence(int fd) {
  const int32_t token = next_token_++;
  presence_.emplace(token, fd);
  return token;
}

void Environment::remove_presence(int32_t token) {
  const auto found = presence_.find(token);
  if (found == presence_.end()) return;
  release_presence(found->second);
  presence_.erase(found);
}

void Environment::closing_finished() {
  --closing_;
  if (ending_ && closing_ == 0) finish_cleanup();
}

void Environment::on_cleanup(napi_async_cleanup_hook_handle, void* data) {
  auto* self = static_cast<Environment*>(data);
  self->ending_ = true;
  for (Slot& slot : self->slots_) {
    if (slot.open == nullptr) continue;
    slot.open->close(self->env_);
    slot.open.reset();
  }
  for (const auto& [token, fd] : self->presence_) release_presence(fd);
  self->presence_.clear();
  if (self->closing_ == 0) self->finish_cleanup();
}

void Environment::finish_cleanup() {
  ending_ = false;
  napi_remove_async_cleanup_hook(std::exchange(hook_, nullptr));
}

void Environment::on_exit() {
  const Guard guard;
  if (registry().pid != getpid())
    return;  // a forked child that ends: these are its parent's members
  for (Environment* self : registry().environments) {
    // Only our own: another thread may be in the middle of a call. The kernel clears up after it.
    if (pthread_equal(self->thread_, pthread_self()) == 0) continue;
    for (Slot& slot : self->slots_) {
      if (slot.open == nullptr) continue;
      slot.open->abandon();
      (void)slot.open.release();
    }
  }
}

}  // namespace millrace::addon
