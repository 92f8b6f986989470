#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <cstdlib>

#include "transport/credits.h"

using namespace millrace::transport;

namespace {

constexpr uint32_t kPool = 64;

void check(bool right) {
  if (!right) std::abort();
}

/** A count as a peer may state it: near what it should be, or anything. */
uint64_t near(FuzzedDataProvider& input, uint64_t real) {
  return input.ConsumeBool() ? real + static_cast<uint64_t>(input.ConsumeIntegral<int8_t>())
                             : input.ConsumeIntegral<uint64_t>();
}

}  // namespace

/**
 * The credit words and fields that a peer writes, in any order and with any value: what it may do
 * is spoil its own connection. The receiver's slots stay accounted for (I2), the sender's counts
 * never go back or beyond what an SRQ can have.
 */
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  SendCredits sender;
  GrantBook book;
  sender.reset(kUsableFloor);
  book.reset();
  uint32_t pool = kPool, in_flight = 0;
  uint64_t lost_frames = 0;  // whose credits came back, beyond what a grant may bring
  while (input.remaining_bytes() > 0) {
    const uint64_t seen = sender.seen(), granted = book.granted(), outstanding = book.outstanding();
    const uint32_t lent = book.lent();
    switch (input.ConsumeIntegralInRange<int>(0, 7)) {
      case 0: {
        const uint64_t said = near(input, seen);
        const bool possible = sender.see(said);
        check(sender.seen() == (possible && said > seen ? said : seen));
        break;
      }
      case 1:
        if (sender.may_send()) {
          check(sender.take() == (sender.available() == 0));
          ++in_flight;
        }
        break;
      case 2: {
        bool obeyed = false;
        const uint32_t burnt =
            sender.burn(static_cast<uint32_t>(near(input, sender.recall_answered())), &obeyed);
        check(burnt == 0 || (obeyed && sender.available() == kUsableFloor));
        break;
      }
      case 3:
        if (input.ConsumeBool()) {
          sender.answered();
        } else {
          const uint32_t lost = input.ConsumeIntegralInRange<uint32_t>(0, in_flight);
          sender.lost(lost, input.ConsumeBool());
          in_flight -= lost;
          lost_frames += lost;
        }
        break;
      case 4:
        if (outstanding > 0) book.consumed();
        break;
      case 5: {
        const uint32_t n = input.ConsumeIntegralInRange<uint32_t>(0, pool);
        book.lend(n);
        pool -= n;
        break;
      }
      case 6:
        (void)book.recall();
        break;
      default: {
        uint32_t back = 0;
        const bool possible =
            book.stated(static_cast<uint32_t>(near(input, kPool - pool)),
                        static_cast<uint32_t>(near(input, book.recall_number())), &back);
        check(possible || (back == 0 && book.lent() == lent && book.outstanding() == outstanding));
        pool += back;
      }
    }
    check(sender.seen() >= seen && sender.used() <= sender.seen());
    check(sender.available() <= kMaxCredits + lost_frames);
    check(book.granted() >= granted && pool + book.lent() == kPool);
    check(book.outstanding() <= kUsableFloor + book.lent());
  }
  return 0;
}
