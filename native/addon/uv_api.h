#pragma once

#include <cstddef>

struct uv_loop_s;

namespace millrace::addon {

/**
 * The few functions of libuv that are used, looked up in the host at run time. The Node-API headers
 * do not contain uv.h, and a host that is not Node.js may have no libuv at all, or stubs that
 * abort; so nothing of libuv is linked, and handles are opaque blocks of handle_size() bytes. This
 * is part of libuv 1.x's stable ABI.
 */
struct UvApi {
  static constexpr int kPollType = 8;  ///< UV_POLL
  static constexpr int kReadable = 1;  ///< UV_READABLE

  using PollCallback = void (*)(void* handle, int status, int events);
  using CloseCallback = void (*)(void* handle);

  size_t (*handle_size)(int type);
  int (*poll_init)(uv_loop_s* loop, void* handle, int fd);
  int (*poll_start)(void* handle, int events, PollCallback callback);
  int (*poll_stop)(void* handle);
  void (*close)(void* handle, CloseCallback callback);
  void (*ref)(void* handle);
  void (*unref)(void* handle);
  void* (*get_data)(const void* handle);
  void (*set_data)(void* handle, void* data);
};

/** The host's libuv, or null when there is none of version 1 in which UV_POLL is what we think. */
const UvApi* find_uv();

}  // namespace millrace::addon
