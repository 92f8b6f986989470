#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/status.h"
#include "transport/background.h"
#include "transport/region.h"
#include "verbs/owners.h"

namespace millrace::transport {

/** One file of a pool's blocks: `b-<incarnation>.<number>` in the domain's folder. */
struct Slab {
  uint32_t number = 0;
  uint32_t count = 0;     ///< blocks
  uint64_t capacity = 0;  ///< bytes of a block
  std::optional<RegionFile> file;
  /** Once one of its blocks is for a receiver elsewhere, or from a publisher there. */
  verbs::MrPtr mr;

  uint64_t bytes() const { return capacity * count; }
};

/**
 * Makes the file of a slab, with all its pages there. `ahead` of its need there is time for huge
 * ones, if the system has them, and for going gently. Any thread. Errors: those of
 * RegionFile::create(); ECANCELED when `stop` was set. Then nothing is left.
 */
base::Status make_slab(int folder, uint64_t incarnation, Slab& slab, bool ahead,
                       const std::atomic<bool>& stop);

/** A slab that is made ahead of its need, in the background. Its owner's thread makes all calls. */
class SpareSlab {
 public:
  /** `folder` is open for as long as this lives. */
  SpareSlab(int folder, uint64_t incarnation, Slab slab);
  /** What is being made, or was not taken, goes with its file. */
  ~SpareSlab();
  SpareSlab(const SpareSlab&) = delete;
  SpareSlab& operator=(const SpareSlab&) = delete;

  uint64_t bytes() const { return bytes_; }
  /** Whether take() says how it ended. */
  bool done() const { return making_.done() || !making_.started(); }
  /** The slab, once done(); nothing where there was no room for it. */
  std::optional<Slab> take();

 private:
  const int folder_;
  const uint64_t incarnation_;
  const uint64_t bytes_;
  Slab slab_;  ///< of the thread until done()
  Background making_;
};

}  // namespace millrace::transport
