#include "transport/handshake.h"

#include <cstring>

#include "transport/frame.h"

namespace millrace::transport {
namespace {

constexpr uint32_t kOfferMagic = 0x4D4C524F;
constexpr uint32_t kTunnelMagic = 0x4D4C5254;
constexpr uint16_t kVersion = 1;

struct WireOffer {
  uint32_t magic;
  uint16_t version;
  uint16_t bytes;
  uint64_t incarnation;
  uint64_t credit_address;
  uint32_t credit_rkey;
  uint32_t credit_tag;
  uint32_t srq_number;
  uint32_t slot_bytes;
  uint32_t granted;
  uint8_t lanes;
  uint8_t medium;
  uint8_t ethernet;
  uint8_t mtu;
  uint32_t lid;
  uint8_t gid[16];
  uint32_t reserved[3];
};
static_assert(sizeof(WireOffer) == kOfferBytes);

struct WireTunnel {
  uint32_t magic;
  uint8_t version;
  uint8_t type;
  uint16_t lane;
  uint64_t sender;
  uint64_t receiver;
  uint64_t number;
  uint64_t last;
  uint32_t qp_number;
  uint32_t psn;
};
static_assert(sizeof(WireTunnel) == kTunnelBytes);

}  // namespace

std::array<uint8_t, kOfferBytes> encode_offer(const OfferData& offer) {
  WireOffer wire{};
  wire.magic = kOfferMagic;
  wire.version = kVersion;
  wire.bytes = sizeof(wire);
  wire.incarnation = offer.incarnation;
  wire.credit_address = offer.credit_address;
  wire.credit_rkey = offer.credit_rkey;
  wire.credit_tag = offer.credit_tag;
  wire.srq_number = offer.srq_number;
  wire.slot_bytes = offer.slot_bytes;
  wire.granted = offer.granted;
  wire.lanes = static_cast<uint8_t>(offer.lanes);
  wire.medium = static_cast<uint8_t>(offer.medium);
  wire.ethernet = offer.address.ethernet ? 1 : 0;
  wire.mtu = offer.address.mtu;
  wire.lid = offer.address.lid;
  std::memcpy(wire.gid, offer.address.gid.data(), sizeof(wire.gid));
  std::array<uint8_t, kOfferBytes> bytes;
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  return bytes;
}

std::optional<OfferData> decode_offer(std::span<const uint8_t> bytes) {
  WireOffer wire;
  if (bytes.size() != sizeof(wire)) return std::nullopt;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.magic != kOfferMagic || wire.version != kVersion || wire.bytes != sizeof(wire))
    return std::nullopt;
  for (uint32_t word : wire.reserved) {
    if (word != 0) return std::nullopt;
  }
  if (wire.incarnation == 0 || wire.srq_number >= 1u << 24) return std::nullopt;
  if (wire.credit_address == 0 || wire.credit_address % sizeof(uint64_t) != 0) return std::nullopt;
  if (wire.credit_tag == 0 || wire.credit_tag >= 1u << 16) return std::nullopt;
  if (wire.slot_bytes < kMinSlotBytes || wire.slot_bytes > kMaxSlotBytes ||
      wire.slot_bytes % kRecordAlign != 0) {
    return std::nullopt;
  }
  // At least the usable floor (R13), at most what an SRQ can hold.
  if (wire.granted < 2 || wire.granted > 1u << 16) return std::nullopt;
  if (wire.lanes != static_cast<uint8_t>(LaneKind::kXrc) &&
      wire.lanes != static_cast<uint8_t>(LaneKind::kRc)) {
    return std::nullopt;
  }
  if (wire.medium != static_cast<uint8_t>(Medium::kSoft) &&
      wire.medium != static_cast<uint8_t>(Medium::kAdapters)) {
    return std::nullopt;
  }
  // 256 to 4096 bytes, as ibv_mtu numbers them.
  if (wire.mtu < 1 || wire.mtu > 5 || wire.ethernet > 1 || wire.lid > 0xFFFF) return std::nullopt;
  OfferData offer;
  offer.incarnation = wire.incarnation;
  offer.credit_address = wire.credit_address;
  offer.credit_rkey = wire.credit_rkey;
  offer.credit_tag = wire.credit_tag;
  offer.srq_number = wire.srq_number;
  offer.slot_bytes = wire.slot_bytes;
  offer.granted = wire.granted;
  offer.lanes = static_cast<LaneKind>(wire.lanes);
  offer.medium = static_cast<Medium>(wire.medium);
  offer.address.ethernet = wire.ethernet != 0;
  offer.address.mtu = wire.mtu;
  offer.address.lid = static_cast<uint16_t>(wire.lid);
  std::memcpy(offer.address.gid.data(), wire.gid, sizeof(wire.gid));
  return offer;
}

std::array<uint8_t, kTunnelBytes> encode_tunnel(const TunnelMessage& message) {
  WireTunnel wire{};
  wire.magic = kTunnelMagic;
  wire.version = kVersion;
  wire.type = static_cast<uint8_t>(message.type);
  wire.lane = message.lane;
  wire.sender = message.sender;
  wire.receiver = message.receiver;
  wire.number = message.number;
  wire.last = message.last;
  wire.qp_number = message.qp.number;
  wire.psn = message.qp.psn;
  std::array<uint8_t, kTunnelBytes> bytes;
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  return bytes;
}

std::optional<TunnelMessage> decode_tunnel(std::span<const uint8_t> bytes) {
  WireTunnel wire;
  if (bytes.size() != sizeof(wire)) return std::nullopt;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.magic != kTunnelMagic || wire.version != kVersion) return std::nullopt;
  if (wire.type != static_cast<uint8_t>(TunnelType::kAsk) &&
      wire.type != static_cast<uint8_t>(TunnelType::kState)) {
    return std::nullopt;
  }
  if (wire.lane >= kMaxLanes || wire.sender == 0 || wire.receiver == 0 || wire.number == 0)
    return std::nullopt;
  if (wire.type == static_cast<uint8_t>(TunnelType::kAsk) && wire.last != 0) return std::nullopt;
  if (wire.qp_number >= 1u << 24 || wire.psn >= 1u << 24) return std::nullopt;
  TunnelMessage message;
  message.type = static_cast<TunnelType>(wire.type);
  message.lane = wire.lane;
  message.sender = wire.sender;
  message.receiver = wire.receiver;
  message.number = wire.number;
  message.last = wire.last;
  message.qp = {wire.qp_number, wire.psn};
  return message;
}

base::Status check_reachable(const OfferData& ours, const OfferData& theirs, const char* device) {
  if (theirs.medium != ours.medium) {
    return base::Status::error(
        EPROTO, "connect",
        base::format("we are on %s and that member is on %s: all members of a domain need the same "
                     "`device`",
                     device,
                     theirs.medium == Medium::kSoft ? "the software device" : "an adapter"));
  }
  if (theirs.lanes != ours.lanes) {
    return base::Status::error(EPROTO, "connect",
                               base::format("%s makes %s lanes and the device of that member %s",
                                            device, ours.lanes == LaneKind::kXrc ? "XRC" : "RC",
                                            theirs.lanes == LaneKind::kXrc ? "XRC" : "RC"));
  }
  if (theirs.address.ethernet != ours.address.ethernet) {
    return base::Status::error(
        EPROTO, "connect",
        base::format("the port of %s is %s and that of the member's device is not", device,
                     ours.address.ethernet ? "Ethernet" : "InfiniBand"));
  }
  return base::Status::success();
}

}  // namespace millrace::transport
