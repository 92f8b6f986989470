#include "transport/holds.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/step.h"

namespace millrace::transport {
namespace {

using base::step;

constexpr uint32_t kMagic = 0x4d4c5248;  // "MLRH"
constexpr uint64_t kOffered = 1;
constexpr uint64_t kHeld = 2;
/** A word is changed so often under who clears it: its offer is taken and given back (R15). A word
 * that is 0 is offered anew by its publisher alone, who is the one that clears, or dead (R16). */
constexpr int kChanges = 2;

constexpr uint64_t offered(uint64_t serial) { return serial << 2 | kOffered; }
constexpr uint64_t held(uint64_t serial) { return serial << 2 | kHeld; }

}  // namespace

struct HoldTable::Header {
  uint32_t magic;
  uint32_t entries;
  uint64_t publisher;
  uint32_t wanted;
};

namespace {
constexpr size_t kTableBytes = 64 + HoldTable::kEntries * sizeof(HoldEntry);
}

std::string pool_file(uint64_t publisher, uint32_t k) {
  return base::format("b-%llu.%u", static_cast<unsigned long long>(publisher), k);
}

base::Result<HoldTable> HoldTable::create(int folder, uint64_t publisher) {
  static_assert(sizeof(Header) <= 64);
  auto file = base::create_reserved(folder, pool_file(publisher, 0), kTableBytes);
  if (!file.ok()) return file.status();
  auto mapping = base::map_shared(file.value().get(), kTableBytes);
  if (!mapping.ok()) {
    unlinkat(folder, pool_file(publisher, 0).c_str(), 0);
    return mapping.status();
  }
  HoldTable table(mapping.take());
  // Nobody has heard of it before the first descriptor.
  *table.header() = {kMagic, kEntries, publisher, 0};
  return table;
}

base::Result<HoldTable> HoldTable::open(int folder, uint64_t publisher) {
  const std::string name = pool_file(publisher, 0);
  base::Fd file(openat(folder, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) {
    const int error = errno;
    return base::Status::error(error, "open the table of holds",
                               base::format("%s: %s", name.c_str(), strerror(error)));
  }
  struct stat stat;
  if (fstat(file.get(), &stat) != 0 || stat.st_size < static_cast<off_t>(kTableBytes)) {
    return base::Status::error(EPROTO, "open the table of holds", name + ": too short");
  }
  auto mapping = base::map_shared(file.get(), kTableBytes);
  if (!mapping.ok()) return mapping.status();
  HoldTable table(mapping.take());
  const Header found = *table.header();
  if (found.magic != kMagic || found.entries != kEntries || found.publisher != publisher) {
    return base::Status::error(EPROTO, "open the table of holds", name + ": not such a table");
  }
  return table;
}

void HoldTable::offer(uint32_t word, uint64_t serial, uint64_t receiver) {
  // Whoever reads the receiver reads the word before and changes it by CAS, so a mix of an old word
  // and a new receiver leads nowhere.
  std::atomic_ref<uint64_t>(entry(word).receiver).store(receiver, std::memory_order_relaxed);
  step("hold-offer");
  at(word).store(offered(serial), std::memory_order_seq_cst);
  step("hold-offered");
}

void HoldTable::want(bool on) {
  std::atomic_ref<uint32_t>(header()->wanted).store(on ? 1 : 0, std::memory_order_seq_cst);
  step("hold-want");
}

bool HoldTable::take(uint32_t word, uint64_t serial, uint64_t self) {
  if (word >= kEntries || load(word) != offered(serial) || receiver_of(word) != self) return false;
  step("hold-take");
  const bool taken = change(word, offered(serial), held(serial));
  step("hold-taken");
  return taken;
}

bool HoldTable::release(uint32_t word, uint64_t serial) {
  step("hold-release");
  (void)change(word, held(serial), 0);
  // The store before the look at who waits: a publisher says that it waits, and then looks again.
  step("hold-released");
  return wanted();
}

bool HoldTable::wanted() const {
  return std::atomic_ref<uint32_t>(header()->wanted).load(std::memory_order_seq_cst) != 0;
}

bool HoldTable::revoke(uint32_t word, uint64_t serial) {
  if (word >= kEntries) return false;
  step("hold-revoke");
  return change(word, offered(serial), 0);
}

uint64_t HoldTable::receiver_of(uint32_t word) const {
  return std::atomic_ref<uint64_t>(entry(word).receiver).load(std::memory_order_relaxed);
}

void HoldTable::clear_receiver(uint64_t receiver, bool taken) {
  for (uint32_t word = 0; word < kEntries; ++word) {
    uint64_t now = load(word);
    for (int changes = 0; changes <= kChanges; ++changes) {
      // A receiver that is alive may take an offer meanwhile: then it is its own.
      const bool theirs = now != 0 && receiver_of(word) == receiver;
      if (!theirs || (!taken && (now & 3) != kOffered)) break;
      step("hold-clear");
      if (at(word).compare_exchange_strong(now, 0, std::memory_order_seq_cst)) break;
    }
  }
}

void HoldTable::clear_own(uint64_t self, std::span<const uint32_t> kept) {
  for (uint32_t word = 0; word < kEntries; ++word) {
    const uint64_t now = load(word);
    if (now == 0 || receiver_of(word) != self) continue;
    if (std::binary_search(kept.begin(), kept.end(), word)) continue;
    step("hold-clear-own");
    (void)change(word, now, 0);
  }
}

uint32_t HoldTable::count() const {
  uint32_t n = 0;
  for (uint32_t word = 0; word < kEntries; ++word) n += load(word) != 0 ? 1 : 0;
  return n;
}

bool member_lives(int folder, uint64_t incarnation) {
  for (const char kind : {'t', 'm'}) {  // the staged name becomes the other one
    const std::string name =
        base::format("%c-%llu.lock", kind, static_cast<unsigned long long>(incarnation));
    base::Fd file(openat(folder, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    // What can't be looked at counts as alive (R5).
    if (file.valid() ? base::byte_is_locked(file.get(), 0) : errno != ENOENT) return true;
  }
  return false;
}

uint32_t sweep_pool(int folder, uint64_t publisher) {
  if (member_lives(folder, publisher)) return 0;
  auto table = HoldTable::open(folder, publisher);
  if (!table.ok() && table.status().code != ENOENT && table.status().code != EPROTO) return 1;
  if (table.ok()) {
    HoldTable& holds = table.value();
    std::set<uint64_t> dead;
    std::set<uint64_t> alive;
    uint32_t left = 0;
    for (uint32_t word = 0; word < HoldTable::kEntries; ++word) {
      const uint64_t receiver = holds.receiver_of(word);
      if (receiver == 0 || dead.contains(receiver) || alive.contains(receiver)) continue;
      (member_lives(folder, receiver) ? alive : dead).insert(receiver);
    }
    for (const uint64_t receiver : dead) holds.clear_receiver(receiver, true);
    left = holds.count();
    if (left > 0) return left;
    step("pool-sweep");
  }
  // The slabs first: what is left by a sweeper that is killed half-way still has its table.
  base::Fd again(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* const entries = again.valid() ? fdopendir(again.get()) : nullptr;
  if (entries != nullptr) {
    (void)again.release();
    const std::string prefix =
        pool_file(publisher, 0).substr(0, pool_file(publisher, 0).size() - 1);
    const std::string first = pool_file(publisher, 0);
    while (const dirent* found = readdir(entries)) {
      if (strncmp(found->d_name, prefix.c_str(), prefix.size()) != 0 || first == found->d_name) {
        continue;
      }
      unlinkat(folder, found->d_name, 0);
      step("pool-unlink");
    }
    closedir(entries);
  }
  unlinkat(folder, pool_file(publisher, 0).c_str(), 0);
  return 0;
}

}  // namespace millrace::transport
