#include "transport/slab.h"

#include <errno.h>
#include <unistd.h>

#include <utility>

#include "base/step.h"
#include "transport/holds.h"

namespace millrace::transport {

base::Status make_slab(int folder, uint64_t incarnation, Slab& slab, bool ahead,
                       const std::atomic<bool>& stop) {
  const std::string name = pool_file(incarnation, slab.number);
  RegionOptions options;
  options.bytes = slab.bytes();
  options.stop = &stop;
  base::step("pool-slab");
  auto file = RegionFile::create(folder, name, options);
  if (!file.ok()) return file.status();
  base::step("pool-slab-made");
  populate(file.value().bytes(), true, ahead, stop, ahead ? Pace::kGentle : Pace::kFull);
  if (stop.load(std::memory_order_relaxed)) {
    unlinkat(folder, name.c_str(), 0);
    return base::Status::error(ECANCELED, "make a pool's file", "not needed any more");
  }
  slab.file = file.take();
  return base::Status::success();
}

SpareSlab::SpareSlab(int folder, uint64_t incarnation, Slab slab)
    : folder_(folder),
      incarnation_(incarnation),
      bytes_(slab.bytes()),
      slab_(std::move(slab)),
      making_([this](const std::atomic<bool>& stop) {
        // Without room for a spare one goes on without; a loan that finds nothing says why.
        (void)make_slab(folder_, incarnation_, slab_, true, stop);
      }) {}

SpareSlab::~SpareSlab() {
  making_.stop();
  // The thread has seen that, and nothing is left, or it was done before.
  if (slab_.file.has_value()) {
    unlinkat(folder_, pool_file(incarnation_, slab_.number).c_str(), 0);
  }
}

std::optional<Slab> SpareSlab::take() {
  if (!making_.done() || !slab_.file.has_value()) return std::nullopt;
  Slab made = std::move(slab_);
  slab_.file.reset();
  return made;
}

}  // namespace millrace::transport
