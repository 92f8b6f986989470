#include "addon/lent_buffers.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#include "addon/v8_api.h"

namespace millrace::addon {
namespace {

bool have_v8() {
  return &v8::Isolate::GetCurrent != nullptr && &v8::BackingStore::EmptyDeleter != nullptr &&
         static_cast<v8::Local<v8::ArrayBuffer> (*)(
             v8::Isolate*, std::shared_ptr<v8::BackingStore>)>(&v8::ArrayBuffer::New) != nullptr &&
         &v8::ArrayBuffer::NewBackingStore != nullptr;
}

void finalize(napi_env env, void*, void* hint) {
  const std::unique_ptr<Keeper> keeper(static_cast<Keeper*>(hint));
  keeper->let_go(env, *keeper);
}

}  // namespace

/**
 * The environment's thread, for what V8 lets go of elsewhere: it sweeps on threads of its own.
 * Outlives the environment as long as V8 has memory of ours.
 */
struct LentBuffers::Home {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  /** Null once the environment has ended. */
  napi_threadsafe_function thread = nullptr;
  /** The thread, while it detaches one of ours: what V8 lets go of there meanwhile is that. */
  std::atomic<pthread_t> detaching{};

  static std::shared_ptr<Home> create(napi_env env) {
    auto home = std::make_shared<Home>();
    auto own = std::make_unique<std::shared_ptr<Home>>(home);
    napi_value name = nullptr;
    const auto ended = [](napi_env, void* data, void*) {
      const std::unique_ptr<std::shared_ptr<Home>> self(static_cast<std::shared_ptr<Home>*>(data));
      (*self)->close();
    };
    const auto arrived = [](napi_env there, napi_value, void*, void* data) {
      const std::unique_ptr<Keeper> keeper(static_cast<Keeper*>(data));
      if (there != nullptr) keeper->let_go(there, *keeper);
    };
    if (napi_create_string_utf8(env, "millrace memory", NAPI_AUTO_LENGTH, &name) != napi_ok ||
        napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, own.get(), ended,
                                        nullptr, arrived, &home->thread) != napi_ok) {
      return nullptr;
    }
    (void)own.release();
    (void)napi_unref_threadsafe_function(env, home->thread);
    return home;
  }

  void close() {
    pthread_mutex_lock(&mutex);
    thread = nullptr;
    pthread_mutex_unlock(&mutex);
  }

  /** Any thread. Without an environment there is nobody left to tell. */
  void send(std::unique_ptr<Keeper> keeper) {
    pthread_mutex_lock(&mutex);
    if (thread != nullptr) {
      const napi_status status =
          napi_call_threadsafe_function(thread, keeper.get(), napi_tsfn_nonblocking);
      if (status == napi_ok) {
        (void)keeper.release();
      } else if (status == napi_closing) {
        thread = nullptr;
      }
    }
    pthread_mutex_unlock(&mutex);
  }
};

/** What the last reference to a backing store does. */
struct LentBuffers::Delete {
  std::shared_ptr<Home> home;
  Keeper keeper;

  void operator()(v8::BackingStore* memory) {
    // Not when the last weak reference goes: with what calls this.
    Keeper own = std::move(keeper);
    delete memory;
    if (home->detaching.load(std::memory_order_relaxed) == pthread_self()) return;
    home->send(std::make_unique<Keeper>(std::move(own)));
  }
};

bool LentBuffers::try_v8(napi_env env) {
  if (!have_v8()) return false;
  // Whether external memory is allowed at all, Node-API knows.
  static uint8_t byte;
  napi_value external = nullptr;
  const auto nothing = [](napi_env, void*, void*) {};
  if (napi_create_external_arraybuffer(env, &byte, 1, nothing, nullptr, &external) != napi_ok) {
    return false;
  }
  home_ = Home::create(env);
  if (home_ == nullptr) return false;
  // A V8 that does otherwise than these functions' names say is not used.
  static uint8_t memory[64 * 1024];
  const auto kept = std::make_shared<int>();
  const auto nobody = [](napi_env, const Keeper&) {};
  napi_value buffer = nullptr;
  void* data = nullptr;
  size_t bytes = 0;
  int64_t before = 0;
  int64_t after = 0;
  const bool good =
      napi_adjust_external_memory(env, 0, &before) == napi_ok &&
      make(env, memory, sizeof(memory), {nullptr, kept, 0, 0, nobody}, &buffer) == napi_ok &&
      napi_adjust_external_memory(env, 0, &after) == napi_ok &&
      after < before + static_cast<int64_t>(sizeof(memory)) &&
      napi_get_arraybuffer_info(env, buffer, &data, &bytes) == napi_ok && data == memory &&
      bytes == sizeof(memory) && kept.use_count() == 2 && detach(env, buffer) &&
      kept.use_count() == 1;
  if (!good) home_ = nullptr;
  return good;
}

napi_status LentBuffers::make_counted(napi_env env, void* data, size_t bytes, Keeper keeper,
                                      napi_value* buffer) {
  auto own = std::make_unique<Keeper>(std::move(keeper));
  const napi_status status =
      napi_create_external_arraybuffer(env, data, bytes, finalize, own.get(), buffer);
  if (status == napi_ok) (void)own.release();
  return status;
}

napi_status LentBuffers::make(napi_env env, void* data, size_t bytes, Keeper keeper,
                              napi_value* buffer) {
  if (!std::exchange(tried_, true)) (void)try_v8(env);
  if (home_ == nullptr) return make_counted(env, data, bytes, std::move(keeper), buffer);
  auto store =
      v8::ArrayBuffer::NewBackingStore(data, bytes, v8::BackingStore::EmptyDeleter, nullptr);
  if (store == nullptr) return napi_generic_failure;
  std::shared_ptr<v8::BackingStore> shared(store.release(), Delete{home_, std::move(keeper)});
  const v8::Local<v8::ArrayBuffer> made =
      v8::ArrayBuffer::New(v8::Isolate::GetCurrent(), std::move(shared));
  static_assert(sizeof(made) == sizeof(*buffer));
  memcpy(buffer, &made, sizeof(made));
  return napi_ok;
}

bool LentBuffers::detach(napi_env env, napi_value buffer) const {
  if (home_ == nullptr) return empty(env, buffer);
  home_->detaching.store(pthread_self(), std::memory_order_relaxed);
  const bool done = empty(env, buffer);
  home_->detaching.store({}, std::memory_order_relaxed);
  return done;
}

bool LentBuffers::empty(napi_env env, napi_value buffer) {
  bool detached = false;
  if (napi_is_detached_arraybuffer(env, buffer, &detached) != napi_ok || detached) return false;
  // From Node.js 24 on what is marked as untransferable has a key, and Node-API ends the process
  // that detaches without it.
  napi_value none = nullptr;
  if (&v8::Isolate::GetCurrent != nullptr && napi_get_undefined(env, &none) == napi_ok) {
    v8::Local<v8::Value> key{};
    memcpy(&key, &none, sizeof(key));
    reinterpret_cast<v8::ArrayBuffer*>(buffer)->SetDetachKey(key);
  }
  return napi_detach_arraybuffer(env, buffer) == napi_ok;
}

}  // namespace millrace::addon
