#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/member.h"

/**
 * What two members tell each other over the control connection: the offer (once, before anything is
 * sent) and the two tunnel messages of a re-arm (R14). Pure encoders and strict, bounded decoders;
 * fuzzed by test/fuzz/offer_fuzz.cc. Little endian, version 1.
 */
namespace millrace::transport {

/** What a sender needs to reach an inbox, and that inbox's owner to grant credits to the sender. */
struct OfferData {
  uint64_t incarnation = 0;  ///< who offers
  uint64_t credit_address =
      0;  ///< the offerer's credit entry for that peer: granted, then recall number
  uint32_t credit_rkey = 0;
  uint32_t credit_tag = 0;  ///< goes to the upper 16 bits of what is written there
  uint32_t srq_number = 0;
  uint32_t slot_bytes = 0;
  uint32_t granted = 0;  ///< credits that the taker may use at once
};

std::array<uint8_t, kOfferBytes> encode_offer(const OfferData& offer);
/** Nothing when it is not exactly an offer of this version with possible values. */
std::optional<OfferData> decode_offer(std::span<const uint8_t> bytes);

enum class TunnelType : uint8_t {
  kAsk = 1,    ///< "my lane is down: which is the last frame of it that you have?"
  kState = 2,  ///< the answer, given after everything that had landed was demultiplexed
};

struct TunnelMessage {
  TunnelType type = TunnelType::kAsk;
  uint16_t lane = 0;      ///< the asking sender's number
  uint64_t sender = 0;    ///< incarnation of who made this message
  uint64_t receiver = 0;  ///< incarnation of whom it is for
  uint64_t number = 0;    ///< of the ask, repeated in its answer
  uint64_t last = 0;      ///< kState: last frame sequence
};

inline constexpr size_t kTunnelBytes = 40;
static_assert(kTunnelBytes <= kMaxTunnelBytes);

std::array<uint8_t, kTunnelBytes> encode_tunnel(const TunnelMessage& message);
std::optional<TunnelMessage> decode_tunnel(std::span<const uint8_t> bytes);

}  // namespace millrace::transport
