#include "addon/uv_api.h"

#include <dlfcn.h>

#include <cstring>

namespace millrace::addon {
namespace {

template <class F>
bool resolve(F*& function, const char* name) {
  function = reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

bool load(UvApi& uv) {
  unsigned (*version)() = nullptr;
  const char* (*type_name)(int) = nullptr;
  if (!resolve(version, "uv_version") || !resolve(type_name, "uv_handle_type_name")) return false;
  if (version() >> 16 != 1) return false;
  const char* name = type_name(UvApi::kPollType);
  if (name == nullptr || strcmp(name, "poll") != 0) return false;
  return resolve(uv.handle_size, "uv_handle_size") && resolve(uv.poll_init, "uv_poll_init") &&
         resolve(uv.poll_start, "uv_poll_start") && resolve(uv.poll_stop, "uv_poll_stop") &&
         resolve(uv.close, "uv_close") && resolve(uv.ref, "uv_ref") &&
         resolve(uv.unref, "uv_unref") && resolve(uv.get_data, "uv_handle_get_data") &&
         resolve(uv.set_data, "uv_handle_set_data");
}

}  // namespace

const UvApi* find_uv() {
  static UvApi uv;
  static const bool found = load(uv);
  return found ? &uv : nullptr;
}

}  // namespace millrace::addon
