#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "transport/frame.h"
#include "transport/handshake.h"

using namespace millrace::transport;

/** What a peer says over the control connection. Whatever is accepted is possible, and is encoded
 * back to the same. */
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // In a block of exactly that size, so that a read behind it is seen.
  std::unique_ptr<uint8_t[]> copy(new uint8_t[size]);
  std::memcpy(copy.get(), data, size);
  const std::span<const uint8_t> bytes(copy.get(), size);
  if (const auto offer = decode_offer(bytes)) {
    if (offer->srq_number >= 1u << 24 || offer->slot_bytes < kMinSlotBytes ||
        offer->slot_bytes > kMaxSlotBytes || offer->slot_bytes <= kFrameHeaderBytes ||
        offer->incarnation == 0 || offer->granted < 2) {
      std::abort();
    }
    const auto again = encode_offer(*offer);
    if (again.size() != size || std::memcmp(again.data(), data, size) != 0) std::abort();
  }
  if (const auto message = decode_tunnel(bytes)) {
    if (message->lane >= kMaxLanes || message->sender == 0 || message->receiver == 0) std::abort();
    const auto again = encode_tunnel(*message);
    if (again.size() != size || std::memcmp(again.data(), data, size) != 0) std::abort();
  }
  return 0;
}
