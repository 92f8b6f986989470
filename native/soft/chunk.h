#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "soft/layout.h"

namespace millrace::soft {

/** What a block of shared memory is used for. A block is only ever used again for the same kind and
 * size. */
enum class BlockKind { kCq, kQueue };

/** A block in this process's chunks. */
struct Block {
  void* address = nullptr;
  Ref ref;
};

/**
 * The shared memory that this process owns: files of its incarnation, reserved in full before they
 * are mapped (R6). A freed block is kept for the same kind and size: a stopped peer that still
 * looks at the old object finds the same structure at the same place, with numbers that are new
 * (state words carry SRQ numbers, armings are never repeated), so its compare-and-swap fails. Not
 * on the data path; the caller serialises.
 */
class Chunks {
 public:
  /** Chunk 0 starts with ProcessShared. ENOSPC and the like come from the reservation. */
  static base::Result<Chunks> create(int folder, const std::string& path, uint32_t slot,
                                     uint32_t incarnation);

  /**
   * A block of `bytes`, zeroed if it is new; `recycled` says that it was used before for the same
   * kind and size. Makes a new chunk when there is no room.
   */
  base::Result<Block> allocate(BlockKind kind, size_t bytes, bool* recycled);
  void free(BlockKind kind, const Ref& ref);

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
  std::map<std::pair<BlockKind, uint32_t>, std::vector<Ref>> free_;
};

}  // namespace millrace::soft
