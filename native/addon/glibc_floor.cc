// What runs Node.js's own Linux binaries (glibc 2.28 since Node.js 18) shall run this addon and the
// drop-in library, although they are built on a newer system. Three things of the static libstdc++
// and of glibc 2.29 to 2.36 would raise that floor; none is needed. scripts/prebuild.mjs checks the
// outcome. Linked with --wrap for each name below (see glibc_floor.cmake).

#include <features.h>  // __GLIBC__

#if defined(__x86_64__) && defined(__GLIBC__)

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// 1. Functions that moved into libc.so.6 (2.32 to 2.34) and were given a new version: the old name
// is still there.
#define MILLRACE_OLD(result, name, parameters, arguments)                     \
  __asm__(".symver old_" #name ", " #name "@GLIBC_2.2.5");                    \
  extern "C" result old_##name parameters;                                    \
  extern "C" result __wrap_##name parameters;                                 \
  extern "C" result __wrap_##name parameters { return old_##name arguments; } \
  static_assert(true)

using Routine = void* (*)(void*);
using Once = void (*)();
using Destructor = void (*)(void*);

MILLRACE_OLD(int, pthread_create, (pthread_t * t, const pthread_attr_t* a, Routine f, void* x),
             (t, a, f, x));
MILLRACE_OLD(int, pthread_join, (pthread_t t, void** r), (t, r));
MILLRACE_OLD(int, pthread_sigmask, (int how, const sigset_t* set, sigset_t* old), (how, set, old));
MILLRACE_OLD(int, pthread_once, (pthread_once_t * control, Once f), (control, f));
MILLRACE_OLD(int, pthread_key_create, (pthread_key_t * key, Destructor f), (key, f));
MILLRACE_OLD(int, __pthread_key_create, (pthread_key_t * key, Destructor f), (key, f));
MILLRACE_OLD(int, pthread_key_delete, (pthread_key_t key), (key));
MILLRACE_OLD(void*, pthread_getspecific, (pthread_key_t key), (key));
MILLRACE_OLD(int, pthread_setspecific, (pthread_key_t key, const void* value), (key, value));
MILLRACE_OLD(int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex));
MILLRACE_OLD(void*, dlopen, (const char* file, int flags), (file, flags));
MILLRACE_OLD(void*, dlsym, (void* handle, const char* name), (handle, name));
MILLRACE_OLD(void*, dlvsym, (void* handle, const char* name, const char* version),
             (handle, name, version));
MILLRACE_OLD(int, dladdr, (const void* address, Dl_info* info), (address, info));
MILLRACE_OLD(int, dlclose, (void* handle), (handle));
MILLRACE_OLD(char*, dlerror, (), ());

// 2. The stat family, functions only since 2.33. On this architecture the kernel fills the very
// struct stat.
extern "C" {
int __wrap_stat(const char* path, struct stat* out);
int __wrap_stat(const char* path, struct stat* out) {
  return static_cast<int>(syscall(SYS_stat, path, out));
}
int __wrap_lstat(const char* path, struct stat* out);
int __wrap_lstat(const char* path, struct stat* out) {
  return static_cast<int>(syscall(SYS_lstat, path, out));
}
int __wrap_fstat(int fd, struct stat* out);
int __wrap_fstat(int fd, struct stat* out) { return static_cast<int>(syscall(SYS_fstat, fd, out)); }
int __wrap_fstatat(int dir, const char* path, struct stat* out, int flags);
int __wrap_fstatat(int dir, const char* path, struct stat* out, int flags) {
  return static_cast<int>(syscall(SYS_newfstatat, dir, path, out, flags));
}

// 3. What the static libraries of the compiler ask for.
// A hint that atomics may be plain; in Node.js there always are several threads.
char __wrap___libc_single_threaded = 0;
// The unwinder's index of loaded objects. No exception is ever caught here (-fno-exceptions), so
// "not found" only makes an out-of-memory end in std::terminate at once, where it would end anyway.
int __wrap__dl_find_object(void* address, void* result);
int __wrap__dl_find_object(void*, void*) { return -1; }
// std::random_device's first choice.
uint32_t __wrap_arc4random();
uint32_t __wrap_arc4random() {
  uint32_t value = 0;
  while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
  }
  return value;
}
}

#endif
