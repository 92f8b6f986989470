// Frames of any content: nothing beyond their end is read, what was found lies inside, and the
// checksums that are filled in are the ones that are checked.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "soft/packet.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::soft;
  std::unique_ptr<uint8_t[]> frame(new uint8_t[size]);
  memcpy(frame.get(), data, size);
  PacketFields fields;
  PacketLayout layout;
  if (!parse_frame(frame.get(), size, &fields, &layout)) {
    if (size >= kMinFrame) abort();
    return 0;
  }
  if (layout.ip + layout.ip_header > size || layout.l4 + layout.l4_bytes > size) abort();
  if (layout.l4 != 0 && layout.fragment) abort();
  (void)checksums_are_ok(frame.get(), fields, layout);
  fill_checksums(frame.get(), fields, layout);
  if (layout.l4 != 0 && !checksums_are_ok(frame.get(), fields, layout)) abort();
  return 0;
}
