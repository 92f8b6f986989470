#include "soft/peer.h"

#include "soft/wake.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "soft/fabric.h"

namespace millrace::soft {

base::Result<const base::Mapping*> PeerProcess::chunk(uint32_t k) {
  if (own_ != nullptr) {
    if (const base::Mapping* map = own_->map(k)) return map;
    return base::Status::error(EPROTO, "find own memory", base::format("there is no chunk %u", k));
  }
  auto found = chunks_.find(k);
  if (found != chunks_.end()) return static_cast<const base::Mapping*>(&found->second);
  const std::string name = chunk_name(slot_, incarnation_, k);
  base::Fd fd(openat(root_.folder(), name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    const int error = errno;
    return base::Status::error(error, "map a peer's memory", name + ": " + strerror(error));
  }
  base::Result<base::Mapping> map = base::map_shared(fd.get(), static_cast<size_t>(info.st_size));
  if (!map.ok()) return map.status();
  return static_cast<const base::Mapping*>(&chunks_.emplace(k, map.take()).first->second);
}

base::Result<void*> PeerProcess::resolve(const Ref& ref, size_t min_bytes) {
  base::Result<const base::Mapping*> map = chunk(ref.chunk);
  if (!map.ok()) return map.status();
  const size_t offset = size_t{ref.unit} * kUnit;
  const size_t size = map.value()->size();
  if (ref.bytes < min_bytes || offset > size || ref.bytes > size - offset) {
    return base::Status::error(
        EPROTO, "map a peer's memory",
        base::format("reference %u.%u+%u lies outside %s", ref.chunk, ref.unit, ref.bytes,
                     chunk_name(slot_, incarnation_, ref.chunk).c_str()));
  }
  return static_cast<void*>(map.value()->data() + offset);
}

base::Result<ProcessShared*> PeerProcess::shared() {
  base::Result<const base::Mapping*> map = chunk(0);
  if (!map.ok()) return map.status();
  if (map.value()->size() < sizeof(ProcessShared)) {
    return base::Status::error(EPROTO, "map a peer's memory", "chunk 0 is too short");
  }
  ProcessShared* shared = reinterpret_cast<ProcessShared*>(map.value()->data());
  if (shared->magic != kProcessMagic || shared->owner != owner()) {
    return base::Status::error(EPROTO, "map a peer's memory", "chunk 0 is not of that process");
  }
  return shared;
}

std::shared_ptr<base::Fd> PeerProcess::wake(uint32_t channel) {
  if (channel == kNoChannel) return nullptr;
  if (std::shared_ptr<base::Fd> known = wakes_[channel].lock()) return known;
  std::erase_if(wakes_, [](const auto& entry) { return entry.second.expired(); });
  // O_RDWR: opening a FIFO this way neither waits for a reader nor ever raises SIGPIPE.
  auto fd = std::make_shared<base::Fd>(openat(root_.folder(),
                                              wake_name(slot_, incarnation_, channel).c_str(),
                                              O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!fd->valid()) return nullptr;
  wakes_[channel] = fd;
  return fd;
}

void PeerProcess::wake_now(uint32_t channel) {
  std::shared_ptr<base::Fd> fd = wake(channel);
  if (fd == nullptr) return;
  write_wake(fd->get(), {});
  last_woken_ = std::move(fd);
}

}  // namespace millrace::soft
