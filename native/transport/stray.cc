#include "transport/stray.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace millrace::transport {
namespace {

constexpr size_t kRanges = 4096;
constexpr size_t kPages = 4096;

struct Range {
  std::atomic<uintptr_t> start{0};
  std::atomic<uintptr_t> end{0};
};

// Used by the handler: plain static memory, and atomics only.
Range ranges[kRanges];
std::atomic<size_t> used_ranges{0};
/** Pages with a private copy; the lowest bit is set while it is being put in place. */
std::atomic<uintptr_t> pages[kPages];
std::atomic<size_t> used_pages{0};
uintptr_t page_size = 4096;
struct sigaction previous;

bool watched(uintptr_t address) {
  const size_t used = used_ranges.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    const uintptr_t start = ranges[i].start.load(std::memory_order_acquire);
    if (start > 1 && address >= start && address < ranges[i].end.load(std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

/** Takes an entry for a page. @return its index; kPages when there is none left or another thread
 * is at that page (`busy`). */
size_t claim(uintptr_t page, bool& busy) {
  for (size_t i = 0; i < kPages; ++i) {
    uintptr_t expected = 0;
    const uintptr_t there = pages[i].load(std::memory_order_acquire);
    if ((there & ~uintptr_t{1}) == page) {
      busy = true;
      return kPages;
    }
    if (there != 0 || !pages[i].compare_exchange_strong(expected, page | 1)) continue;
    size_t used = used_pages.load();
    while (used <= i && !used_pages.compare_exchange_weak(used, i + 1)) {
    }
    return i;
  }
  return kPages;
}

/** Async-signal-safe. @return whether the write can be tried again */
bool copy_page(uintptr_t address) {
  const uintptr_t page = address & ~(page_size - 1);
  bool busy = false;
  const size_t entry = claim(page, busy);
  if (busy) return true;  // another thread of ours puts the copy in place
  if (entry == kPages) return false;
  void* const at = reinterpret_cast<void*>(page);
  void* const copy =
      mmap(nullptr, page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) {
    pages[entry].store(0, std::memory_order_release);
    return false;
  }
  memcpy(copy, at, page_size);
  if (mremap(copy, page_size, page_size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) {
    munmap(copy, page_size);
    pages[entry].store(0, std::memory_order_release);
    return false;
  }
  pages[entry].store(page, std::memory_order_release);
  return true;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  // A page that may be read and is there: only a write faults like this.
  if (info->si_code == SEGV_ACCERR && watched(address) && copy_page(address)) return;
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    return previous.sa_handler(signal);
  }
  // The fault comes again and ends the process, as it would have without us.
  ::signal(signal, SIG_DFL);
}

bool install() {
  page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  if (sigaction(SIGSEGV, nullptr, &previous) != 0) return false;
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | (previous.sa_flags & SA_NODEFER);
  action.sa_mask = previous.sa_mask;
  return sigaction(SIGSEGV, &action, nullptr) == 0;
}

}  // namespace

bool watch_strays(const void* start, size_t bytes) {
  static const bool installed = install();
  if (!installed) return false;
  const auto from = reinterpret_cast<uintptr_t>(start);
  for (size_t i = 0; i < kRanges; ++i) {
    uintptr_t expected = 0;
    // `end` first would let a reader pair it with an old start; a start of 1 is in no range.
    if (!ranges[i].start.compare_exchange_strong(expected, 1)) continue;
    ranges[i].end.store(from + bytes, std::memory_order_release);
    ranges[i].start.store(from, std::memory_order_release);
    size_t used = used_ranges.load();
    while (used <= i && !used_ranges.compare_exchange_weak(used, i + 1)) {
    }
    return true;
  }
  return false;
}

void unwatch_strays(const void* start) {
  const auto from = reinterpret_cast<uintptr_t>(start);
  const size_t used = used_ranges.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    if (ranges[i].start.load(std::memory_order_acquire) != from) continue;
    const uintptr_t end = ranges[i].end.exchange(0);
    forget_strays(start, end - from);
    ranges[i].start.store(0, std::memory_order_release);
    return;
  }
}

void forget_strays(const void* start, size_t bytes) {
  const auto from = reinterpret_cast<uintptr_t>(start);
  for (size_t i = 0, n = used_pages.load(std::memory_order_acquire); i < n; ++i) {
    const uintptr_t page = pages[i].load(std::memory_order_acquire);
    if (page >= from && page < from + bytes) pages[i].store(0, std::memory_order_release);
  }
}

uint32_t restore_strays(const void* start, size_t bytes, int file, uint64_t offset) {
  const auto from = reinterpret_cast<uintptr_t>(start);
  uint32_t restored = 0;
  for (size_t i = 0, n = used_pages.load(std::memory_order_acquire); i < n; ++i) {
    const uintptr_t page = pages[i].load(std::memory_order_acquire);
    if (page < from || page >= from + bytes || (page & 1) != 0) continue;
    (void)mmap(reinterpret_cast<void*>(page), page_size, PROT_READ, MAP_SHARED | MAP_FIXED, file,
               static_cast<off_t>(offset + (page - from)));
    pages[i].store(0, std::memory_order_release);
    ++restored;
  }
  return restored;
}

}  // namespace millrace::transport
