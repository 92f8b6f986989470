#pragma once

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "base/status.h"

namespace millrace::transport {

/** A verbs call that failed with `error` (0 is taken as EINVAL: some providers leave errno alone).
 */
inline base::Status verb_error(int error, const char* what, const char* detail) {
  if (error == 0) error = EINVAL;
  return base::Status::error(error, what, base::format("%s: %s", detail, strerror(error)));
}

/** ibv_reg_mr failed: says how much, and when memory is the cause, the limit as measured and the
 * remedy. */
inline base::Status registration_error(int error, const char* what, size_t bytes) {
  if (error == 0) error = EINVAL;
  std::string detail = base::format("%s, %zu bytes: %s", what, bytes, strerror(error));
  rlimit limit;
  if ((error == ENOMEM || error == EPERM || error == EAGAIN) &&
      getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    detail += base::format(
        "; RLIMIT_MEMLOCK is %llu bytes: raise it (ulimit -l unlimited, docker run --ulimit "
        "memlock=-1)",
        static_cast<unsigned long long>(limit.rlim_cur));
  }
  return base::Status::error(error, "ibv_reg_mr", std::move(detail));
}

}  // namespace millrace::transport
