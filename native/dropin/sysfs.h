#pragma once

#include <cstddef>

namespace millrace::dropin {

/**
 * Reads a file of sysfs into `text`, without its last newline and ending in a NUL if there is room.
 * The kernel does not know the software devices, so the few files of theirs that programs ask for
 * through this library are answered from here. @return the length; -1 with errno. Any thread.
 */
int read_sysfs(const char* folder, const char* name, char* text, size_t size);

}  // namespace millrace::dropin
