#include "soft/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "soft/death.h"
#include "soft/reap.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

constexpr uint64_t kDeathCheckNs = 1'000'000;

std::mutex& instance_mutex() {
  static std::mutex* mutex =
      new std::mutex;  // never destroyed: atexit handlers of others may still close devices
  return *mutex;
}
std::atomic<Process*> instance{nullptr};
std::atomic<bool> is_forked{false};

void child_after_fork() {
  Process* process = instance.load(std::memory_order_relaxed);
  if (process == nullptr) return;
  is_forked.store(true, std::memory_order_relaxed);
  process->after_fork_in_child();
}

void at_exit() {
  if (is_forked.load(std::memory_order_relaxed)) return;
  std::unique_lock lock(instance_mutex(), std::try_to_lock);
  if (!lock.owns_lock())
    return;  // a thread is joining or leaving; what it leaves behind, the next one reaps
  Process* process = instance.load(std::memory_order_relaxed);
  if (process != nullptr) process->leave_at_exit();
}

void install_hooks_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, child_after_fork);
    atexit(at_exit);
  });
}

uint64_t boot_hash() {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  base::Fd fd(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[64];
  const ssize_t n = fd.valid() ? read(fd.get(), text, sizeof(text)) : 0;
  for (ssize_t i = 0; i < n; ++i)
    hash = (hash ^ static_cast<unsigned char>(text[i])) * 0x100000001b3u;
  return hash;
}

base::Status os_error(const char* what, const std::string& detail = {}) {
  const int error = errno;
  return base::Status::error(error, what,
                             detail.empty() ? strerror(error) : detail + ": " + strerror(error));
}

}  // namespace

bool forked() { return is_forked.load(std::memory_order_relaxed); }

Process* Process::current() { return instance.load(std::memory_order_acquire); }

base::Result<Process*> Process::acquire() {
  if (forked()) {
    return base::Status::error(
        EPERM, "open the software device",
        "this process was forked from one that had opened it; start a new program (exec) "
        "instead");
  }
  install_hooks_once();
  std::lock_guard lock(instance_mutex());
  Process* process = instance.load(std::memory_order_relaxed);
  if (process == nullptr) {
    std::unique_ptr<Process> fresh(new Process);
    base::Status status = fresh->join();
    if (!status.ok()) return status;
    process = fresh.release();
    instance.store(process, std::memory_order_release);
  }
  ++process->users_;
  return process;
}

void Process::release() {
  std::lock_guard lock(instance_mutex());
  if (--users_ > 0) return;
  instance.store(nullptr, std::memory_order_release);
  leave(false);
  delete this;
}

base::Status Process::join() {
  base::Result<FabricPath> path = FabricPath::from_environment();
  if (!path.ok()) return path.status();
  path_ = path.take();
  const char* why = nullptr;
  if (!read_delays(&why)) return base::Status::error(EINVAL, "join the fabric", why);

  presence_epoll_ = base::Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!presence_epoll_.valid()) return os_error("create presence poll set");
  suspect_timer_ = base::Fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!suspect_timer_.valid()) return os_error("create presence timer");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (epoll_ctl(presence_epoll_.get(), EPOLL_CTL_ADD, suspect_timer_.get(), &event) != 0) {
    return os_error("create presence timer");
  }
  struct stat ns;
  pid_namespace_ = stat("/proc/self/ns/pid", &ns) == 0 ? static_cast<uint64_t>(ns.st_ino) : 0;

  // However joining fails, an empty folder must not stay. Others' are not empty, or they make
  // theirs again.
  const auto failed = [this](base::Status status) {
    rmdir(path_.folder.c_str());
    rmdir(path_.parent.c_str());
    return status;
  };
  // The last leaver may remove the folder between our making it and our locking it; then we make it
  // again.
  for (int attempt = 0;; ++attempt) {
    base::Status status = make_folders(path_);
    if (!status.ok()) {
      if (status.code == ENOENT && attempt < 100) continue;
      return status;
    }
    base::Result<FolderLock> lock = FolderLock::take(path_);
    if (!lock.ok()) {
      if (lock.status().code == ENOENT && attempt < 100) continue;
      return failed(lock.status());
    }
    base::Result<std::unique_ptr<Root>> root = Root::open(lock.value().folder(), path_, true);
    if (!root.ok()) {
      remove_if_unused(lock.value().folder());
      return failed(root.status());
    }
    root_ = root.take();
    reap_all(*root_);
    status = claim_slot();
    if (!status.ok()) {
      // Descriptors first: it may be they that ran out, and removing needs some. And our own lock
      // must not count.
      presence_map_.reset();
      presence_.reset();
      alive_.reset();
      spare_.reset();
      suspect_timer_.reset();
      if (!anybody_present(*root_)) remove_fabric(path_, lock.value().folder());
    }
    return status;
  }
}

void Process::remove_if_unused(int folder) {
  // Our own attempt at a root may be the only thing in there (descriptors ran out between making
  // and opening it).
  presence_epoll_.reset();
  suspect_timer_.reset();
  base::Result<std::unique_ptr<Root>> root = Root::open(folder, path_, false);
  if (root.ok() && !anybody_present(*root.value())) remove_fabric(path_, folder);
}

base::Status Process::claim_slot() {
  // A description of its own for our lock: descriptors that only test locks must not count as ours.
  presence_ = base::Fd(openat(root_->folder(), kRootName, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!presence_.valid()) return os_error("open fabric root");
  uint32_t slot = 0;
  for (;; ++slot) {
    if (slot == root_->processes()) {
      return base::Status::error(EAGAIN, "join the fabric",
                                 base::format("%s has all its %u process slots in use; choose "
                                              "another MILLRACE_FABRIC for some of them",
                                              path_.folder.c_str(), root_->processes()));
    }
    const uint64_t word = root_->process(slot).state.load();
    if (static_cast<ProcessState>(word >> 32) != ProcessState::kFree) continue;
    base::Status locked = base::lock_byte(presence_.get(), slot);
    if (locked.ok()) break;
    if (locked.code != EAGAIN) return locked;
  }
  slot_ = slot;
  step("slot locked");
  spare_ = base::Fd(openat(root_->folder(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!spare_.valid()) return os_error("open fabric folder");
  base::Result<base::Mapping> map =
      base::map_shared(presence_.get(), static_cast<size_t>(sysconf(_SC_PAGESIZE)), 0, false);
  if (!map.ok()) return map.status();
  presence_map_ = map.take();
  // A forked child must not keep our presence up.
  if (madvise(presence_map_.data(), presence_map_.size(), MADV_DONTFORK) != 0)
    return os_error("protect presence from fork");

  base::Result<Chunks> chunks = Chunks::create(root_->folder(), path_.folder, slot_, incarnation());
  if (!chunks.ok()) return chunks.status();
  chunks_ = chunks.take();
  const auto undo = [this](base::Status status) {
    unlinkat(root_->folder(), chunk_name(slot_, incarnation(), 0).c_str(), 0);
    unlinkat(root_->folder(), alive_name(slot_, incarnation()).c_str(), 0);
    return status;
  };
  ProcessShared& shared_part = chunks_.process();
  shared_part.owner = owner();
  shared_part.pid = static_cast<uint32_t>(getpid());
  shared_part.magic = kProcessMagic;
  attention_ = &shared_part.attention;

  const std::string name = alive_name(slot_, incarnation());
  if (mkfifoat(root_->folder(), name.c_str(), 0600) != 0)
    return undo(os_error("create presence FIFO", name));
  alive_ =
      base::Fd(openat(root_->folder(), name.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!alive_.valid()) return undo(os_error("open presence FIFO", name));
  step("presence made");

  ProcessRecord& record = root_->process(slot_);
  record.pid = static_cast<uint32_t>(getpid());
  record.pid_namespace = pid_namespace_;
  record.boot = boot_hash();
  record.state.store(process_word(ProcessState::kLive, incarnation()));
  step("joined");
  return base::Status::success();
}

void Process::leave(bool at_exit) {
  // Leaving needs two descriptors, and the program may have none left. A hang-up alone is not our
  // death (R5).
  alive_.reset();
  spare_.reset();
  // Without the folder's lock (somebody stopped holds it) the own things still go; the rest is the
  // next joiner's.
  base::Result<FolderLock> lock = FolderLock::take(path_, at_exit ? 200 : 2000);
  reap_process(*root_, slot_, incarnation(), nullptr, at_exit);
  if (lock.ok()) {
    reap_all(*root_);
    if (!anybody_present(*root_, static_cast<int>(slot_)))
      remove_fabric(path_, lock.value().folder());
  }
}

void Process::leave_at_exit() { leave(true); }

void Process::after_fork_in_child() {
  presence_.reset();
  alive_.reset();
}

void Process::arm_suspect_timer(bool on) {
  itimerspec spec = {};
  if (on) {
    spec.it_value.tv_nsec = 1'000'000;
    spec.it_interval.tv_nsec = 20'000'000;
  }
  timerfd_settime(suspect_timer_.get(), 0, &spec, nullptr);
}

base::Result<std::shared_ptr<PeerProcess>> Process::attach(uint32_t slot, uint32_t incarnation) {
  // By both: a word that joins somebody's incarnation to another slot must not become him (I9).
  const uint64_t name = owner_word(slot, incarnation);
  auto found = peers_.find(name);
  if (found != peers_.end()) return found->second;
  const bool self = name == owner();
  auto peer = std::make_shared<PeerProcess>(*root_, slot, incarnation, self ? &chunks_ : nullptr);
  if (self) {
    peers_.emplace(name, peer);
    return peer;
  }
  if (slot >= root_->processes()) {  // nobody, of whom nothing is to be cleaned up
    peer->mark_dead();
    return peer;
  }
  // First open, then test the lock: else it could die in between, and nobody would tell.
  base::Fd alive(openat(root_->folder(), alive_name(slot, incarnation).c_str(),
                        O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!alive.valid() && errno != ENOENT) return os_error("watch a peer's presence");
  step("watched");
  if (root_->is_dead(slot, incarnation)) {
    peer->mark_dead();
    peers_.emplace(name, peer);
    dead_on_arrival_.push_back(peer);
    request_death_check();
    return peer;
  }
  char none;
  if (!alive.valid() || read(alive.get(), &none, 1) == 0) {
    // No name or no writer any more (then the FIFO that we opened never hangs up): it is ending,
    // and its lock will soon be free.
    peer->suspect = true;
    peers_.emplace(name, peer);
    if (suspects_.fetch_add(1, std::memory_order_relaxed) == 0) arm_suspect_timer(true);
    return peer;
  }
  epoll_event event = {};
  event.events = 0;  // hang-ups are always reported
  event.data.u64 = name;
  if (epoll_ctl(presence_epoll_.get(), EPOLL_CTL_ADD, alive.get(), &event) != 0)
    return os_error("watch a peer's presence");
  peer->alive = std::move(alive);
  peers_.emplace(name, peer);
  return peer;
}

uint32_t Process::claim_mr() {
  // Fresh indices first: the 8 bits of generation in a key then last long.
  if (mrs_used_ < kMrs) return mrs_used_++;
  if (free_mrs_.empty()) return kMrs;
  const uint32_t index = free_mrs_.front();
  free_mrs_.pop_front();
  return index;
}

std::shared_ptr<base::Mapping> Process::map_backing(const XrcdKey& file, const char* path,
                                                    uint64_t bytes) {
  std::weak_ptr<base::Mapping>& known = backings_[{file.device, file.inode}];
  std::shared_ptr<base::Mapping> map = known.lock();
  if (map != nullptr && map->size() >= bytes) return map;
  base::Fd fd(open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0 ||
      static_cast<uint64_t>(info.st_dev) != file.device ||
      static_cast<uint64_t>(info.st_ino) != file.inode ||
      static_cast<uint64_t>(info.st_size) < bytes) {
    return nullptr;
  }
  base::Result<base::Mapping> fresh = base::map_shared(fd.get(), static_cast<size_t>(info.st_size));
  if (!fresh.ok()) return nullptr;
  map = std::make_shared<base::Mapping>(fresh.take());
  known = map;
  std::erase_if(backings_, [](const auto& entry) { return entry.second.expired(); });
  return map;
}

base::Result<std::shared_ptr<base::Mapping>> Process::map_ring(int fd, size_t bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0) return os_error("inspect a completion ring");
  std::weak_ptr<base::Mapping>& known = rings_[{info.st_dev, info.st_ino}];
  std::shared_ptr<base::Mapping> map = known.lock();
  if (map != nullptr && map->size() == bytes) return map;
  base::Result<base::Mapping> fresh = base::map_shared(fd, bytes);
  if (!fresh.ok()) return fresh.status();
  map = std::make_shared<base::Mapping>(fresh.take());
  known = map;
  std::erase_if(rings_, [](const auto& entry) { return entry.second.expired(); });
  return map;
}

void Process::maybe_check_deaths(uint64_t now) {
  if (!death_check_requested()) {
    uint64_t due = next_death_check_.load(std::memory_order_relaxed);
    if (now < due) return;
    // One thread of many looks.
    if (!next_death_check_.compare_exchange_strong(due, now + kDeathCheckNs,
                                                   std::memory_order_relaxed))
      return;
  }
  check_deaths();
}

void Process::check_deaths() {
  std::unique_lock lock(objects_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  death_requested_.store(false, std::memory_order_relaxed);
  std::vector<std::shared_ptr<PeerProcess>> dead;
  {
    std::lock_guard registry_lock(registry_);
    dead.swap(dead_on_arrival_);
    epoll_event events[32];
    const int n = epoll_wait(presence_epoll_.get(), events, 32, 0);
    for (int i = 0; i < n; ++i) {
      if (events[i].data.u64 == 0) {
        uint64_t ticks;
        (void)!read(suspect_timer_.get(), &ticks, sizeof(ticks));
        continue;
      }
      auto found = peers_.find(events[i].data.u64);
      if (found == peers_.end()) continue;
      // A hang-up alone is not death (R5): a program may close all its descriptors. Watched by time
      // from here on.
      PeerProcess& peer = *found->second;
      epoll_ctl(presence_epoll_.get(), EPOLL_CTL_DEL, peer.alive.get(), nullptr);
      if (!peer.suspect) {
        peer.suspect = true;
        if (suspects_.fetch_add(1, std::memory_order_relaxed) == 0) arm_suspect_timer(true);
      }
    }
    if (suspects_.load(std::memory_order_relaxed) > 0) {
      for (auto& [name, peer] : peers_) {
        if (!peer->suspect || !root_->is_dead(peer->slot(), peer->incarnation())) continue;
        peer->suspect = false;
        peer->mark_dead();
        dead.push_back(peer);
        if (suspects_.fetch_sub(1, std::memory_order_relaxed) == 1) arm_suspect_timer(false);
      }
    }
  }
  for (const auto& peer : dead) {
    handle_death(peer);
    std::lock_guard registry_lock(registry_);
    peers_.erase(peer->owner());
  }
}

void Process::handle_death(const std::shared_ptr<PeerProcess>& peer) {
  step("death");
  reap_what_it_took(*this, *peer);                          // our SRQs and CQs (R2)
  reap_process(*root_, peer->slot(), peer->incarnation());  // the fabric's records and its files
  wake_after_death(*this, *peer);  // our own WRs that waited for it (R8, R10)
}

}  // namespace millrace::soft
