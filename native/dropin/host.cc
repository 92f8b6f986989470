// What libibverbs offers beside verbs: sysfs and fork support.
#include <errno.h>
#include <infiniband/verbs.h>
#include <string.h>

#include "dropin/sysfs.h"

extern "C" {

// rdma-core's own libraries import these; no header declares them.
const char* ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char* folder, const char* name, char* text, size_t size);

const char* ibv_get_sysfs_path(void) { return "/sys"; }

int ibv_read_sysfs_file(const char* folder, const char* name, char* text, size_t size) {
  return millrace::dropin::read_sysfs(folder, name, text, size);
}

// The device's memory is shared files and the program's own pages, which a child must not use with
// it anyhow (every verb fails there): fork needs no preparation.
int ibv_fork_init(void) { return 0; }
ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
int ibv_dontfork_range(void*, size_t) { return 0; }
int ibv_dofork_range(void*, size_t) { return 0; }

}  // extern "C"
