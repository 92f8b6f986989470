#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "soft/layout/process.h"
#include "soft/layout/queue.h"

namespace millrace::soft {

/**
 * What a block of shared memory is used for: the parts that it has, and so its size. A block is
 * only ever used again for the same shape: the same size is not enough, since a late waiter of a
 * queue that is gone still gives its park entry back, which must not be a WQE's word by then (R25).
 */
struct BlockShape {
  enum class Kind { kCq, kQueue } kind;
  QueueLayout layout = {};  ///< of a queue
  auto operator<=>(const BlockShape&) const = default;
};

/** A block in this process's chunks. */
struct Block {
  void* address = nullptr;
  Ref ref;
};

/**
 * The shared memory that this process owns: files of its incarnation, reserved in full before they
 * are mapped (R6). A freed block is kept for the same shape: a stopped peer that still looks at
 * the old object finds the same structure at the same place, with numbers that are new
 * (state words carry SRQ numbers, armings are never repeated), so its compare-and-swap fails. Not
 * on the data path; the caller serialises.
 */
class Chunks {
 public:
  /** Chunk 0 starts with ProcessShared. ENOSPC and the like come from the reservation. */
  static base::Result<Chunks> create(int folder, const std::string& path, uint32_t slot,
                                     uint32_t incarnation);

  /**
   * A block of `bytes`, which follow from the shape, zeroed if it is new; `recycled` says that it
   * was used before. Makes a new chunk when there is no room.
   */
  base::Result<Block> allocate(const BlockShape& shape, size_t bytes, bool* recycled);
  void free(const BlockShape& shape, const Ref& ref);

  /** Null if there is no such chunk. Valid until another one is added. */
  const base::Mapping* map(uint32_t chunk) const {
    return chunk < maps_.size() ? &maps_[chunk] : nullptr;
  }
  /** Read by every thread without a lock, while another one may add a chunk: so not by way of
   * `maps_`. */
  ProcessShared& process() const { return *process_; }
  /** Bytes of all chunk files. */
  size_t bytes() const;
  void* resolve(const Ref& ref) const;

 private:
  base::Status add(size_t bytes);

  int folder_ = -1;
  std::string path_;
  uint32_t slot_ = 0;
  uint32_t incarnation_ = 0;
  ProcessShared* process_ = nullptr;  ///< start of chunk 0, which never moves
  std::vector<base::Mapping> maps_;
  std::vector<size_t> used_;
  std::map<BlockShape, std::vector<Ref>> free_;
};

}  // namespace millrace::soft
