#pragma once

#include <string>

#include "base/status.h"

namespace millrace::addon {

/**
 * Presence locks: an OFD write lock on byte 0 of a file says that its owner lives. The kernel drops
 * it at exit and at SIGKILL. The descriptors are CLOEXEC, and forked children close them (they
 * would otherwise keep a dead owner alive). Process-wide; any thread.
 */

/**
 * Opens (or creates, mode 0600) the file and takes its lock. The caller owns the descriptor and
 * gives it back with `release_presence`. EAGAIN: somebody else has it.
 */
base::Result<int> take_presence(const std::string& path);

/** Drops the lock and closes the descriptor. The file stays. */
void release_presence(int fd);

/**
 * Whether some open file description holds the lock (or one on any other byte: see
 * soft/layout.h), this process's own included. No such file: false. When it can not be told
 * (EACCES, EMFILE) it answers true: death is certain or it is not death (R5).
 */
bool is_present(const std::string& path);

}  // namespace millrace::addon
