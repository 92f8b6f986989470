#include "transport/leases.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/step.h"
#include "transport/stray.h"

namespace millrace::transport {
namespace {

uint64_t page_size() {
  static const auto size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

uint64_t pages(uint64_t bytes) { return (bytes + page_size() - 1) & ~(page_size() - 1); }

base::Status failure(int error, const char* what, const std::string& name) {
  return base::Status::error(error, what, name + ": " + strerror(error));
}

/** With so many files of a publisher, those without holds are closed before another is opened. */
constexpr size_t kIdleFiles = 256;

}  // namespace

Leases::View::View(base::Mapping mapping) : mapping_(std::move(mapping)) {
  // Without a free entry a stray write is a crash, as it is in any program.
  (void)watch_strays(mapping_.data(), mapping_.size());
}

Leases::View::~View() { unwatch_strays(mapping_.data()); }

base::Status Leases::View::privatise(uint64_t offset, uint64_t bytes) {
  bytes = pages(bytes);
  void* const copy =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return failure(errno, "keep a block", "private memory");
  memcpy(copy, data() + offset, bytes);
  // In one step: a reader on another thread sees the same bytes before and after.
  if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, data() + offset) == MAP_FAILED) {
    const int error = errno;
    munmap(copy, bytes);
    return failure(error, "keep a block", "private memory");
  }
  forget_strays(data() + offset, bytes);
  return base::Status::success();
}

base::Result<Leases::Publisher*> Leases::publisher(uint64_t incarnation) {
  const auto found = publishers_.find(incarnation);
  if (found != publishers_.end()) return &found->second;
  auto table = HoldTable::open(folder_.get(), incarnation);
  if (!table.ok()) return table.status();
  Publisher& made = publishers_[incarnation];
  made.table = table.take();
  return &made;
}

base::Result<Leases::File*> Leases::file(uint64_t incarnation, Publisher& of,
                                         const Descriptor& at) {
  auto found = of.files.find(at.slab);
  if (found == of.files.end()) {
    const std::string name = pool_file(incarnation, at.slab);
    if (of.files.size() >= kIdleFiles) {
      // Of slabs that the publisher has given up, most likely.
      std::erase_if(of.files, [](const auto& entry) { return entry.second.holds == 0; });
    }
    base::Fd fd(
        openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!fd.valid()) return failure(errno, "open a pool's file", name);
    struct stat stat;
    if (fstat(fd.get(), &stat) != 0) return failure(errno, "look at a pool's file", name);
    File opened;
    opened.fd = std::move(fd);
    opened.bytes = static_cast<uint64_t>(stat.st_size);
    found = of.files.emplace(at.slab, std::move(opened)).first;
  }
  const File& opened = found->second;
  if (at.offset > opened.bytes || at.bytes > opened.bytes - at.offset) {
    return base::Status::error(
        EPROTO, "take a block",
        pool_file(incarnation, at.slab) + ": the descriptor reaches beyond the file's end");
  }
  return &found->second;
}

base::Result<uint32_t> Leases::take(uint64_t incarnation, std::span<const uint8_t> descriptor) {
  if (closed_ || descriptor.size() < kDescriptorBytes) {
    return base::Status::error(EPROTO, "take a block", "a short descriptor");
  }
  Descriptor at;
  memcpy(&at, descriptor.data(), sizeof(at));
  if (at.bytes == 0 || at.slab == 0 || at.offset % page_size() != 0) {
    return base::Status::error(EPROTO, "take a block", "a descriptor that is not valid");
  }
  auto of = publisher(incarnation);
  if (!of.ok()) return of.status();
  Publisher& from = *of.value();
  if (!from.table.take(at.word, at.serial, self_)) {
    return base::Status::error(ENOENT, "take a block", "the offer was taken back");
  }
  const auto opened = file(incarnation, from, at);
  if (!opened.ok()) {
    (void)from.table.release(at.word, at.serial);
    return opened.status();
  }
  ++from.holds;
  ++opened.value()->holds;
  holds_.emplace(++next_, Hold{incarnation, &from, opened.value(), at, {}, true});
  return next_;
}

void Leases::revoke(uint64_t incarnation, std::span<const uint8_t> descriptor) {
  if (closed_ || descriptor.size() < kDescriptorBytes) return;
  Descriptor at;
  memcpy(&at, descriptor.data(), sizeof(at));
  auto of = publisher(incarnation);
  if (of.ok() && at.word < HoldTable::kEntries && of.value()->table.receiver_of(at.word) == self_) {
    (void)of.value()->table.revoke(at.word, at.serial);
  }
}

base::Result<Leases::Memory> Leases::refer(uint32_t number, Use use) {
  const auto found = holds_.find(number);
  if (found == holds_.end()) {
    return base::Status::error(ENOENT, "use a block", "the hold was given back");
  }
  Hold& hold = found->second;
  File& opened = *hold.file;
  std::shared_ptr<View>& view = opened.views[static_cast<int>(use)];
  if (view == nullptr) {
    auto mapping = base::map_shared(opened.fd.get(), opened.bytes, 0, false);
    if (!mapping.ok()) return mapping.status();
    view = std::make_shared<View>(mapping.take());
  }
  hold.views[static_cast<int>(use)] = view;
  return Memory{view->data() + hold.at.offset, hold.at.bytes, view};
}

Leases::Released Leases::release(uint32_t number, Use use) {
  Released released;
  const auto found = holds_.find(number);
  if (found == holds_.end()) return released;
  Hold& hold = found->second;
  std::shared_ptr<View> view;
  if (use == Use::kTaken) {
    hold.taken = false;
  } else {
    view = std::move(hold.views[static_cast<int>(use)]);
  }
  Publisher& from = *hold.from;
  File& opened = *hold.file;
  // Before the word is cleared: the next user of the block must see the publisher's pages.
  if (view != nullptr) {
    released.strays = restore_strays(view->data() + hold.at.offset, pages(hold.at.bytes),
                                     opened.fd.get(), hold.at.offset);
  }
  if (hold.taken || hold.views[0] != nullptr || hold.views[1] != nullptr) {
    released.wanted = from.table.wanted();
    return released;
  }
  released.last = true;
  released.wanted = from.table.release(hold.at.word, hold.at.serial);
  const uint64_t incarnation = hold.publisher;
  holds_.erase(found);
  --from.holds;
  --opened.holds;
  // The word was cleared before this looks at the owner's death (R17).
  if (from.gone) forget_if_done(incarnation);
  return released;
}

/** Of a publisher that is gone nothing more comes; its files go with the last hold of anyone. */
void Leases::forget_if_done(uint64_t incarnation) {
  const auto found = publishers_.find(incarnation);
  if (found == publishers_.end() || !found->second.gone) return;
  if (found->second.holds == 0) publishers_.erase(found);
  base::step("lease-sweep");
  (void)sweep_pool(folder_.get(), incarnation);
}

void Leases::publisher_gone(uint64_t incarnation) {
  if (closed_) return;
  // Also offers that never came, of a table that was never opened here.
  auto of = publisher(incarnation);
  if (!of.ok()) return;
  std::vector<uint32_t> kept;
  for (const auto& [number, hold] : holds_) {
    if (hold.publisher == incarnation) kept.push_back(hold.at.word);
  }
  std::sort(kept.begin(), kept.end());
  of.value()->table.clear_own(self_, kept);
  of.value()->gone = true;
  forget_if_done(incarnation);
}

/** Puts private copies where a hold is referred to. @return false when there is no memory for them
 */
bool Leases::privatise(Hold& hold, bool keep) {
  File& opened = *hold.file;
  for (int use = 0; use < 2; ++use) {
    if (!keep || hold.views[use] == nullptr) continue;
    if (!hold.views[use]->privatise(hold.at.offset, hold.at.bytes).ok()) return false;
    ++copies_;
    copied_bytes_ += hold.at.bytes;
    // Whoever gets this block next needs a mapping without copies in it.
    if (opened.views[use] == hold.views[use]) opened.views[use] = nullptr;
  }
  return true;
}

uint32_t Leases::vacate(uint64_t incarnation) {
  uint32_t given_back = 0;
  for (auto it = holds_.begin(); it != holds_.end();) {
    Hold& hold = it->second;
    if (hold.publisher != incarnation || hold.taken ||
        hold.views[static_cast<int>(Use::kLeased)] != nullptr || !privatise(hold, true)) {
      ++it;
      continue;
    }
    (void)hold.from->table.release(hold.at.word, hold.at.serial);
    --hold.from->holds;
    --hold.file->holds;
    ++given_back;
    it = holds_.erase(it);
  }
  if (given_back > 0) forget_if_done(incarnation);
  return given_back;
}

void Leases::close(bool keep) {
  if (closed_) return;
  closed_ = true;
  for (auto& [number, hold] : holds_) {
    // Without memory for a copy the hold stays until this process ends: its content is promised.
    if (privatise(hold, keep)) {
      (void)hold.from->table.release(hold.at.word, hold.at.serial);
    }
  }
  holds_.clear();
  for (auto& [incarnation, from] : publishers_) {
    if (from.gone) (void)sweep_pool(folder_.get(), incarnation);
  }
  publishers_.clear();
}

Leases::Counts Leases::counts() const {
  Counts counts;
  counts.publishers = static_cast<uint32_t>(publishers_.size());
  for (const auto& [incarnation, from] : publishers_) {
    for (const auto& [slab, opened] : from.files) {
      for (const auto& view : opened.views) counts.views += view != nullptr ? 1 : 0;
    }
  }
  counts.holds = static_cast<uint32_t>(holds_.size());
  counts.copies = copies_;
  counts.copied_bytes = copied_bytes_;
  for (const auto& [number, hold] : holds_) counts.bytes += hold.at.bytes;
  return counts;
}

}  // namespace millrace::transport
