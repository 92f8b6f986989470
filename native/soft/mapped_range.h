#pragma once

#include <cstdint>
#include <string>

namespace millrace::soft {

/** The file that a range of this process is a shared mapping of. */
struct MappedFile {
  std::string path;
  uint64_t device = 0, inode = 0;
  uint64_t offset = 0;  ///< of the range in the file
};

/** What a range of this process's memory is. */
struct MappedRange {
  bool readable = false, writable = false;  ///< all of it
  bool mapped_file = false;  ///< all of it is one shared mapping of a file with a name
  MappedFile file;
};

/**
 * What [address, +length) of this process's memory is, by /proc/self/maps (proc_pid_maps(5)); where
 * that can't be read, readable and writable: the first access will tell. Opens a file: not on the
 * data path.
 */
MappedRange inspect(uint64_t address, uint64_t length);

}  // namespace millrace::soft
