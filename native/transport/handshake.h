#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/member.h"

/**
 * What two members tell each other over the control connection: the offer (once, before anything is
 * sent) and the two tunnel messages by which lanes come up and are re-armed (R14). Pure encoders
 * and strict, bounded decoders; fuzzed by test/fuzz/offer_fuzz.cc. Little endian, version 1.
 */
namespace millrace::transport {

/** What devices reach each other: those of one fabric kind. On the wire. */
enum class Medium : uint8_t {
  kSoft = 1,      ///< the software device: shared memory of one host
  kAdapters = 2,  ///< the system's devices
};

/** How a port is addressed (VERBS 5). */
struct Address {
  std::array<uint8_t, 16> gid{};  ///< zeros: there is none, the LID is enough
  uint16_t lid = 0;
  uint8_t mtu = 1;  ///< an ibv_mtu; a connection uses the smaller of both
  bool ethernet = false;
};

/** A queue pair of one end of a lane. */
struct QpInfo {
  uint32_t number = 0;  ///< 24 bits; 0: none, the other end need not know
  uint32_t psn = 0;     ///< 24 bits: of its first request
};

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
  LaneKind lanes = LaneKind::kXrc;
  Medium medium = Medium::kSoft;
  Address address;
};

std::array<uint8_t, kOfferBytes> encode_offer(const OfferData& offer);
/** Nothing when it is not exactly an offer of this version with possible values. */
std::optional<OfferData> decode_offer(std::span<const uint8_t> bytes);

/** Whether lanes can lead from our device, of that name, to that of another one's offer: EPROTO,
 * and what is different. */
base::Status check_reachable(const OfferData& ours, const OfferData& theirs, const char* device);

enum class TunnelType : uint8_t {
  /** "My lane is down, or new: which is the last frame of it that you have?" With RC also: "I shall
   * send from this queue pair." */
  kAsk = 1,
  /** The answer, given after everything that had landed was demultiplexed. With RC also: "send to
   * this queue pair." */
  kState = 2,
};

struct TunnelMessage {
  TunnelType type = TunnelType::kAsk;
  uint16_t lane = 0;      ///< the asking sender's number
  uint64_t sender = 0;    ///< incarnation of who made this message
  uint64_t receiver = 0;  ///< incarnation of whom it is for
  uint64_t number = 0;    ///< of the ask, repeated in its answer
  uint64_t last = 0;      ///< kState: last frame sequence
  QpInfo qp;              ///< RC: of who made this message
};

inline constexpr size_t kTunnelBytes = 48;
static_assert(kTunnelBytes <= kMaxTunnelBytes);

std::array<uint8_t, kTunnelBytes> encode_tunnel(const TunnelMessage& message);
std::optional<TunnelMessage> decode_tunnel(std::span<const uint8_t> bytes);

}  // namespace millrace::transport
