#pragma once

#include <cstddef>
#include <memory>

/**
 * The few functions of V8 that are used, declared as they are in Node.js 20 to 24 and linked
 * weakly: a host that is not Node.js lacks them, and one whose V8 or C++ library differs in what
 * they take has them by other names (what a function takes is part of its name). So nothing here is
 * used before have_v8() said so. Node-API has no external ArrayBuffer whose memory V8 does not
 * count.
 */
namespace v8 {

#define MILLRACE_WEAK __attribute__((weak, visibility("default")))

class Isolate {
 public:
  /** The calling thread's. */
  MILLRACE_WEAK static Isolate* GetCurrent();
};

class BackingStore {
 public:
  MILLRACE_WEAK ~BackingStore();
  /** Without the object's size, which is not that of this class. */
  void operator delete(void* at) { ::operator delete(at); }
  /** Told apart by its address: what has this deleter is not external memory that V8 counts. */
  MILLRACE_WEAK static void EmptyDeleter(void* data, size_t bytes, void* deleter_data);
};

/** A handle is one pointer, in a handle scope of its caller; a napi_value is the same pointer. */
template <class T>
class Local {
 public:
  T** location;
};

class Value;

class ArrayBuffer {
 public:
  MILLRACE_WEAK static std::unique_ptr<BackingStore> NewBackingStore(
      void* data, size_t bytes, void (*deleter)(void* data, size_t bytes, void* deleter_data),
      void* deleter_data);
  MILLRACE_WEAK static Local<ArrayBuffer> New(Isolate* isolate,
                                              std::shared_ptr<BackingStore> memory);
  /** Who detaches it must show the key, unless it is undefined. Called through a handle's pointer.
   */
  MILLRACE_WEAK void SetDetachKey(Local<Value> key);
};

#undef MILLRACE_WEAK

}  // namespace v8
