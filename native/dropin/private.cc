// The symbols that only rdma-core's own parts import (its vendor libraries, librdmacm, pyverbs),
// and those of the first ABI. Programs are linked so that each must exist when they start, but few
// are ever called here: vendor libraries find no device of theirs. versions.inc, which
// symbols.cmake writes, gives the functions below their names in each version node.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdio.h>

#include "dropin/sysfs.h"

extern "C" {

int millrace_unsupported_int(void);
void* millrace_unsupported_pointer(void);
int millrace_unsupported_fd(void);
int millrace_query_gid_type(ibv_context* context, uint8_t port, unsigned int index, int* type);
int millrace_read_ibdev_file(char* text, size_t size, ibv_device* device, const char* format, ...);
void millrace_register_driver(const void* driver);
extern bool millrace_disassociate;

int millrace_unsupported_int(void) { return EOPNOTSUPP; }
void* millrace_unsupported_pointer(void) {
  errno = EOPNOTSUPP;
  return nullptr;
}
int millrace_unsupported_fd(void) {
  errno = EOPNOTSUPP;
  return -1;
}

/** Vendor libraries offer their drivers when they are loaded. The kernel's devices are not for us.
 */
void millrace_register_driver(const void*) {}

/** Vendor libraries set it for their devices; nothing reads it here. */
bool millrace_disassociate = false;

/** rdma-core's older question about a GID: 0 for InfiniBand and RoCE v1, 1 for RoCE v2; -1 with
 * errno. */
int millrace_query_gid_type(ibv_context* context, uint8_t port, unsigned int index, int* type) {
  ibv_gid_entry entry = {};
  if (const int error = ibv_query_gid_ex(context, port, index, &entry, 0)) {
    errno = error;
    return -1;
  }
  *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}

/** As ibv_read_sysfs_file, of a device, with a name that is formatted. */
int millrace_read_ibdev_file(char* text, size_t size, ibv_device* device, const char* format, ...) {
  char name[256];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(name, sizeof(name), format, arguments);
  va_end(arguments);
  if (length < 0 || length >= static_cast<int>(sizeof(name))) {
    errno = ENAMETOOLONG;
    return -1;
  }
  return millrace::dropin::read_sysfs(device->ibdev_path, name, text, size);
}

}  // extern "C"

#include "dropin/versions.inc"
