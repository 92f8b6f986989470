#pragma once

// Frames for tests, header by header.

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace millrace::test {

class FrameBuilder {
 public:
  FrameBuilder& bytes(std::initializer_list<int> list) {
    for (int b : list) data_.push_back(static_cast<uint8_t>(b));
    return *this;
  }
  FrameBuilder& be16(unsigned value) {
    return bytes({static_cast<int>(value >> 8 & 0xFF), static_cast<int>(value & 0xFF)});
  }
  FrameBuilder& be32(uint32_t value) { return be16(value >> 16).be16(value & 0xFFFF); }
  FrameBuilder& fill(size_t n, uint8_t value = 0) {
    data_.insert(data_.end(), n, value);
    return *this;
  }
  FrameBuilder& text(const std::string& what) {
    data_.insert(data_.end(), what.begin(), what.end());
    return *this;
  }
  FrameBuilder& ethernet(const uint8_t dst[6], const uint8_t src[6], unsigned type) {
    data_.insert(data_.end(), dst, dst + 6);
    data_.insert(data_.end(), src, src + 6);
    return be16(type);
  }
  /** `options` in bytes, a multiple of 4; `flags` are the 16 bits with the fragment offset. */
  FrameBuilder& ipv4(uint32_t src, uint32_t dst, int protocol, unsigned payload, int options = 0,
                     unsigned flags = 0, int tos = 0, int ttl = 64) {
    bytes({0x45 + options / 4, tos});
    be16(20u + static_cast<unsigned>(options) + payload).be16(1).be16(flags);
    bytes({ttl, protocol}).be16(0).be32(src).be32(dst);
    return fill(static_cast<size_t>(options), 1);
  }
  FrameBuilder& ipv6(uint8_t src_last, uint8_t dst_last, int next, unsigned payload,
                     uint32_t label = 0) {
    be32(uint32_t{6} << 28 | label).be16(payload).bytes({next, 64});
    bytes({0xFD}).fill(14).bytes({src_last});
    return bytes({0xFD}).fill(14).bytes({dst_last});
  }
  FrameBuilder& udp(unsigned src, unsigned dst, unsigned payload) {
    return be16(src).be16(dst).be16(8 + payload).be16(0);
  }
  FrameBuilder& tcp(unsigned src, unsigned dst) {
    return be16(src).be16(dst).be32(1).be32(2).bytes({0x50, 0x10}).be16(100).be16(0).be16(0);
  }
  FrameBuilder& vxlan(uint32_t vni) { return bytes({8, 0, 0, 0}).be32(vni << 8); }

  const std::vector<uint8_t>& data() const { return data_; }
  std::vector<uint8_t>& data() { return data_; }

 private:
  std::vector<uint8_t> data_;
};

inline constexpr uint8_t kMacA[6] = {0x02, 0, 0, 0, 0, 0xA};
inline constexpr uint8_t kMacB[6] = {0x02, 0, 0, 0, 0, 0xB};
inline constexpr uint8_t kMacGroup[6] = {0x01, 0x00, 0x5E, 1, 1, 7};

/** Ethernet, IPv4, UDP and a text. */
inline FrameBuilder udp_frame(uint32_t src, uint32_t dst, unsigned sport, unsigned dport,
                              const std::string& text, const uint8_t mac[6] = kMacB) {
  const unsigned n = static_cast<unsigned>(text.size());
  return FrameBuilder()
      .ethernet(mac, kMacA, 0x0800)
      .ipv4(src, dst, 17, 8 + n)
      .udp(sport, dport, n)
      .text(text);
}

}  // namespace millrace::test
