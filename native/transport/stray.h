#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::transport {

/**
 * Writes to memory that is mapped for reading only, of this library's ranges: a chained SIGSEGV
 * handler puts a private copy of the page in place, so that the writer sees its write and nobody
 * else does, and the process lives. Faults anywhere else go to the handler that was there before.
 * Costs nothing until a fault. All calls from any thread; none waits.
 */

/** Watches [start, start + bytes). @return false when the table of ranges is full: unwatched */
bool watch_strays(const void* start, size_t bytes);
void unwatch_strays(const void* start);

/**
 * Maps the file's pages again where private copies were put within [start, start + bytes), which
 * begins at `offset` of `file`. @return how many there were
 */
uint32_t restore_strays(const void* start, size_t bytes, int file, uint64_t offset);

/** What is private there stays so. */
void forget_strays(const void* start, size_t bytes);

}  // namespace millrace::transport
