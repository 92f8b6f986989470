#include <fcntl.h>

#include "soft/pipeline.h"
#include "soft/step.h"

namespace millrace::soft {
namespace {

/** Reserves memory for the slots: once for each ring that ever needs one. */
MILLRACE_COLD bool reserve_slots(Qp& qp, RingUse& use) {
  if (use.carries_nothing) return false;
  const Process& self = *qp.process;
  const uint64_t entry = directory_word(self.slot(), self.incarnation(), qp.number);
  const std::string name = ring_name(use.process->owner(), use.cq_serial, entry);
  base::Fd fd(openat(qp.process->root().folder(), name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  // A page that can't be had must not be touched: messages go by system calls then.
  if (!fd.valid() || !base::reserve(fd.get(), ring_bytes(use.capacity), name).ok()) {
    use.carries_nothing = true;
    return false;
  }
  step("slots reserved");
  use.slots = reinterpret_cast<std::byte*>(use.ring) + carry_offset(use.capacity);
  return true;
}

}  // namespace

std::byte* carry_slot(Qp& qp, RingUse& use, uint32_t bytes) {
  if (bytes > kCarryBytes) return nullptr;
  if (use.tail - use.head_seen >= kCarrySlots) {
    use.head_seen = use.ring->head.load(
        std::memory_order_acquire);  // pairs with the receiver's store: it has placed what was here
    if (use.tail - use.head_seen >= kCarrySlots) return nullptr;
  }
  if (use.slots == nullptr && !reserve_slots(qp, use)) return nullptr;
  return use.slots + use.tail % kCarrySlots * kCarryBytes;
}

}  // namespace millrace::soft
