// Which devices there are, and whose each of them is. The drop-in library has a file of its own in
// place of this one.
#include <errno.h>
#include <infiniband/verbs.h>

#include "soft/provider.h"
#include "verbs/open.h"
#include "verbs/provider.h"

// verbs.h wraps this in a macro.
#undef ibv_get_device_list

namespace millrace::verbs {

const Provider* provider_of(const ibv_device* device) {
  // One provider for now; the system's library becomes the fallback here when it is loaded.
  return soft::provider();
}

}  // namespace millrace::verbs

extern "C" {

ibv_device** ibv_get_device_list(int* num_devices) {
  return millrace::soft::provider()->get_device_list(num_devices);
}
void ibv_free_device_list(ibv_device** list) { millrace::soft::provider()->free_device_list(list); }

ibv_context* ibv_import_device(int fd) {
  const auto import = millrace::soft::provider()->import_device;
  if (import != nullptr) return import(fd);
  errno = EOPNOTSUPP;
  return nullptr;
}

}  // extern "C"
