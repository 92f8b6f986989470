// The drop-in library's own choice of devices: the software device and nothing else. Takes the
// place of verbs/devices.cc.
#include <errno.h>
#include <infiniband/verbs.h>

#include "soft/provider.h"
#include "verbs/open.h"

#undef ibv_get_device_list

namespace millrace::verbs {

namespace {

/**
 * The system's library closes a device whatever still exists of it, and programs count on that
 * (perftest leaves a CQ). The device itself refuses (EBUSY), which helps those that look: here,
 * what is left keeps it open until the process ends.
 */
int close_device(ibv_context* context) {
  const int error = soft::provider()->close_device(context);
  return error == EBUSY ? 0 : error;
}

Provider make_table() {
  Provider table = *soft::provider();
  table.close_device = close_device;
  return table;
}

}  // namespace

const Provider* provider_of(const ibv_device*) {
  static const Provider table = make_table();
  return &table;
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

/** Whoever finds this symbol in a `libibverbs.so.1` knows whose it is. See verbs/dropin_marker.h.
 */
extern const int millrace_dropin;
const int millrace_dropin = 1;

}  // extern "C"
