#pragma once

#include <string>

#include "verbs/provider.h"

namespace millrace::verbs {

/** The system's libibverbs as it was found at the first call of system_library(). */
struct SystemLibrary {
  /** Its table; null when it is not used, and then `problem` says why. */
  const Provider* provider = nullptr;
  std::string path;     ///< the file that was loaded; empty without one
  std::string problem;  ///< why there is none, and what to do; empty when it is used
  /** The loaded library is our own drop-in build (`millrace verbs`): it has no device that the
   * software device linked in here does not have. */
  bool dropin = false;
};

/**
 * Loads the system's `libibverbs.so.1` (dlopen, never linked: a machine without rdma-core still
 * loads the addon) and fills a table from it. Once in a process; the library is never unloaded,
 * since contexts and threads of it may outlive any owner. Any thread.
 */
const SystemLibrary& system_library();

/**
 * As system_library(), of any file: for tests of what is not a whole libibverbs. `table` is filled
 * and must live as long as the result.
 */
SystemLibrary load_library(const char* file, Provider* table);

}  // namespace millrace::verbs
