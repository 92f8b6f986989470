#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "shared_support.h"
#include "transport/holds.h"

// The table of holds that a publisher and all its receivers map (R15 to R17), with words and
// receivers that anybody may have written. Nothing may crash or be read or written out of bounds;
// a hold is taken only of what is offered under that serial and to that receiver, and sweeping a
// dead publisher's pool ends with all of its files gone or with holds that are left.

namespace {

using namespace millrace;
using namespace millrace::fuzz;
using namespace millrace::transport;

constexpr uint64_t kPublisher = 7;
constexpr uint32_t kOps = 60;
constexpr uint32_t kWords = 8;  ///< of the table that are used

class Pool {
 public:
  Pool() {
    folder_ = base::Fd(open(fabric_.base().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    make();
  }
  /** As new: after a sweep, and wherever words were left. */
  void make() {
    for (uint32_t k = 0; k < 3; ++k) unlinkat(folder_.get(), pool_file(kPublisher, k).c_str(), 0);
    auto made = HoldTable::create(folder_.get(), kPublisher);
    if (!made.ok()) die(made.status().detail.c_str());
    ours_ = made.take();
    raw_ = map_file(fabric_.base() + "/" + pool_file(kPublisher, 0));
    const base::Fd slab(openat(folder_.get(), pool_file(kPublisher, 1).c_str(),
                               O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    parts_ = {{raw_.data(), 64}, {raw_.data() + 64, kWords * sizeof(HoldEntry)}};
    parts_.push_back({raw_.data() + raw_.size() - sizeof(HoldEntry), sizeof(HoldEntry)});
    parts_.push_back(parts_[1]);
    fresh_ = Snapshot();
    for (const Bytes part : parts_) fresh_.add(part);
  }
  void run(FuzzedDataProvider& input) {
    fresh_.restore();
    for (uint32_t i = 0; i < kOps && input.remaining_bytes() > 0; ++i) step(input);
  }

 private:
  uint64_t word_of(uint32_t word) const {
    uint64_t value = 0;
    memcpy(&value, raw_.data() + 64 + word * sizeof(HoldEntry), sizeof(value));
    return value;
  }
  void step(FuzzedDataProvider& input) {
    const uint32_t word = input.ConsumeIntegralInRange<uint32_t>(0, kWords - 1);
    const uint64_t serial = input.ConsumeIntegralInRange<uint64_t>(1, 4);
    const uint64_t receiver = input.ConsumeIntegralInRange<uint64_t>(1, 3);
    switch (input.ConsumeIntegralInRange<int>(0, 11)) {
      case 0:
      case 1:
      case 2:
        return scribble(input, parts_);
      case 3:
        if (word_of(word) == 0) ours_.offer(word, serial, receiver);
        return;
      case 4: {
        // A descriptor may name any word.
        const uint32_t any = input.ConsumeBool() ? word : input.ConsumeIntegral<uint32_t>();
        const bool offered =
            any < kWords && word_of(any) == (serial << 2 | 1) && ours_.receiver_of(any) == receiver;
        const bool taken = ours_.take(any, serial, receiver);
        if (any < kWords && taken != offered) die("a hold was taken that was not offered");
        return;
      }
      case 5:
        (void)ours_.release(word, serial);
        return;
      case 6:
        (void)ours_.revoke(input.ConsumeIntegral<uint32_t>(), serial);
        return;
      case 7:
        ours_.clear_receiver(receiver, input.ConsumeBool());
        return;
      case 8: {
        const uint32_t kept[] = {word};
        ours_.clear_own(receiver, kept);
        return;
      }
      case 9:
        ours_.want(input.ConsumeBool());
        (void)ours_.stands(word, serial);
        return;
      case 10: {
        auto again = HoldTable::open(folder_.get(), kPublisher);
        if (again.ok() && again.value().count() != ours_.count()) die("two counts of one table");
        return;
      }
      default:
        // Nobody holds a presence lock here: all of them are dead.
        if (sweep_pool(folder_.get(), kPublisher) != 0) return;
        for (uint32_t k = 0; k < 2; ++k) {
          if (faccessat(folder_.get(), pool_file(kPublisher, k).c_str(), F_OK, 0) == 0)
            die("a dead pool's file is left");
        }
        make();
    }
  }

  OwnFabric fabric_;
  base::Fd folder_;
  HoldTable ours_;
  base::Mapping raw_;
  std::vector<Bytes> parts_;
  Snapshot fresh_;
};

Pool* pool = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  pool = new Pool();
  atexit([] { delete pool; });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  pool->run(input);
  return 0;
}
