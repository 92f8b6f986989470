// Which devices there are, and whose each of them is. The drop-in library has a file of its own in
// place of this one.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>

#include "soft/provider.h"
#include "verbs/open.h"
#include "verbs/provider.h"
#include "verbs/system.h"

// verbs.h wraps this in a macro.
#undef ibv_get_device_list

namespace millrace::verbs {

const Provider* provider_of(const ibv_device* device) {
  // Asked for each call, so the library is not loaded for it: a device of the system exists only
  // after it was.
  return soft::provider()->owns(device) ? soft::provider() : system_library().provider;
}

namespace {

/**
 * A list for the caller, in front of it the providers' own lists: the system's library counts
 * references of what is in its list, so each goes back to who made it.
 */
struct JoinedList {
  ibv_device** soft;
  ibv_device** system;
  ibv_device* devices[1];  ///< as many as there are, and a null
};

}  // namespace
}  // namespace millrace::verbs

extern "C" {

ibv_device** ibv_get_device_list(int* num_devices) {
  using millrace::verbs::JoinedList;
  const auto* const soft = millrace::soft::provider();
  const auto* const system = millrace::verbs::system_library().provider;
  int soft_count = 0;
  ibv_device** const soft_list = soft->get_device_list(&soft_count);
  if (soft_list == nullptr) return nullptr;
  // Without the kernel's part (ENOSYS, no /dev/infiniband) there are just no devices of it.
  int system_count = 0;
  ibv_device** const system_list =
      system != nullptr ? system->get_device_list(&system_count) : nullptr;
  if (system_list == nullptr) system_count = 0;
  const size_t count = static_cast<size_t>(soft_count) + static_cast<size_t>(system_count);
  auto* const joined =
      static_cast<JoinedList*>(calloc(1, sizeof(JoinedList) + count * sizeof(ibv_device*)));
  if (joined == nullptr) {
    soft->free_device_list(soft_list);
    if (system_list != nullptr) system->free_device_list(system_list);
    errno = ENOMEM;
    return nullptr;
  }
  joined->soft = soft_list;
  joined->system = system_list;
  ibv_device** next = joined->devices;
  for (int i = 0; i < soft_count; ++i) *next++ = soft_list[i];
  for (int i = 0; i < system_count; ++i) *next++ = system_list[i];
  if (num_devices != nullptr) *num_devices = static_cast<int>(count);
  return joined->devices;
}

void ibv_free_device_list(ibv_device** list) {
  using millrace::verbs::JoinedList;
  if (list == nullptr) return;
  auto* const joined =
      reinterpret_cast<JoinedList*>(reinterpret_cast<char*>(list) - offsetof(JoinedList, devices));
  millrace::soft::provider()->free_device_list(joined->soft);
  if (joined->system != nullptr)
    millrace::verbs::system_library().provider->free_device_list(joined->system);
  free(joined);
}

ibv_context* ibv_import_device(int fd) {
  // Whose descriptor it is shows when it is tried. The software device knows its own: only what it
  // calls no device of its kind (EPROTONOSUPPORT) may be the system's.
  const auto soft = millrace::soft::provider()->import_device;
  ibv_context* context = soft != nullptr ? soft(fd) : nullptr;
  if (context != nullptr || (soft != nullptr && errno != EPROTONOSUPPORT)) return context;
  const int error = soft != nullptr ? errno : EOPNOTSUPP;
  const auto* const system = millrace::verbs::system_library().provider;
  if (system != nullptr && system->import_device != nullptr) return system->import_device(fd);
  errno = error;
  return nullptr;
}

/**
 * The software device needs no preparation for fork: its memory is files and the program's own
 * pages, which a child must not use with it anyhow (every verb fails there). The system's may.
 */
int ibv_fork_init(void) {
  const auto* const system = millrace::verbs::system_library().provider;
  return system != nullptr && system->fork_init != nullptr ? system->fork_init() : 0;
}
ibv_fork_status ibv_is_fork_initialized(void) {
  const auto* const system = millrace::verbs::system_library().provider;
  return system != nullptr && system->is_fork_initialized != nullptr ? system->is_fork_initialized()
                                                                     : IBV_FORK_UNNEEDED;
}

}  // extern "C"
