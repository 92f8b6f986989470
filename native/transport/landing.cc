#include "transport/landing.h"

#include <errno.h>

#include "base/step.h"

namespace millrace::transport {

base::Result<Landing> land(Member& member, uint32_t peer, std::span<const uint8_t> descriptor,
                           Pool& pool, Leases& leases) {
  const auto from = decode_remote(descriptor);
  if (!from) {
    return base::Status::error(EPROTO, "land a payload", "a descriptor that is not valid");
  }
  const uint64_t self = pool.options().incarnation;
  if (pool.room(self, from->bytes) < from->bytes) {
    return base::Status::error(EAGAIN, "land a payload", "as much is held here as may be");
  }
  const auto lent = pool.lend(from->bytes);
  if (!lent.ok()) return lent.status();
  const uint32_t block = lent.value();
  auto* const to = reinterpret_cast<std::byte*>(pool.address(block));
  uint8_t ours[kDescriptorBytes];
  base::Status status = pool.enroll(block);
  if (status.ok()) status = pool.offer(block, self, from->bytes, ours);
  const uint32_t lkey = status.ok() ? pool.lkey(block) : 0;
  pool.retire(block);  // the hold keeps it, or nothing does
  if (!status.ok()) return status;
  base::step("land-offered");
  const auto hold = leases.take(self, ours);
  if (!hold.ok()) {
    leases.revoke(self, ours);
    return hold.status();
  }
  base::step("land-held");
  const auto fetch = member.fetch(peer, {from->address, from->bytes, from->rkey}, to, lkey);
  if (!fetch.ok()) {
    (void)leases.release(hold.value(), Leases::Use::kTaken);
    return fetch.status();
  }
  return Landing{hold.value(), fetch.value()};
}

}  // namespace millrace::transport
