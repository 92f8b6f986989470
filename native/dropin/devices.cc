// The drop-in library's own choice of devices: the software device and nothing else. Takes the
// place of verbs/devices.cc.
#include <errno.h>
#include <infiniband/verbs.h>

#include "soft/provider.h"
#include "verbs/open.h"

#undef ibv_get_device_list

namespace millrace::verbs {

const Provider* provider_of(const ibv_device*) { return soft::provider(); }

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

/** Whoever finds this symbol in a `libibverbs.so.1` knows whose it is. See verbs/dropin_marker.h.
 */
extern const int millrace_dropin;
const int millrace_dropin = 1;

}  // extern "C"
