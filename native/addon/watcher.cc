#include "addon/watcher.h"

#include <cstdlib>
#include <cstring>

#include "addon/environment.h"
#include "addon/uv_api.h"

namespace millrace::addon {

Listener::Listener(napi_env env, napi_value callback) : target_(std::make_shared<Target>()) {
  napi_value name;
  target_->env = env;
  napi_create_reference(env, callback, 1, &target_->function);
  napi_create_string_utf8(env, "millrace", NAPI_AUTO_LENGTH, &name);
  napi_async_init(env, nullptr, name, &target_->context);
}

Listener::Target::~Target() {
  if (function != nullptr) napi_delete_reference(env, function);
  if (context != nullptr) napi_async_destroy(env, context);
}

void Listener::call() {
  // The function may close the member, and with it this object and all around it.
  const std::shared_ptr<Target> target = target_;
  napi_handle_scope scope;
  if (target == nullptr || napi_open_handle_scope(target->env, &scope) != napi_ok) return;
  const napi_env env = target->env;
  napi_value function;
  napi_value receiver;
  napi_value result;
  napi_get_reference_value(env, target->function, &function);
  napi_get_global(env, &receiver);
  if (napi_make_callback(env, target->context, receiver, function, 0, nullptr, &result) ==
      napi_pending_exception) {
    napi_value error;
    // No exception to fetch: the environment is being torn down.
    if (napi_get_and_clear_last_exception(env, &error) == napi_ok) napi_fatal_exception(env, error);
  }
  napi_close_handle_scope(env, scope);
}

base::Result<std::unique_ptr<Watcher>> make_watcher(Environment& environment, int fd,
                                                    napi_value callback) {
  const char* wanted = getenv("MILLRACE_WATCHER");
  const bool thread = wanted != nullptr && strcmp(wanted, "thread") == 0;
  if (!thread && environment.host_is_node() && find_uv() != nullptr) {
    return make_uv_watcher(environment, fd, callback);
  }
  return make_thread_watcher(environment, fd, callback);
}

}  // namespace millrace::addon
