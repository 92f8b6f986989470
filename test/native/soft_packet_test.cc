// Reading frames: what is found in good ones, and that bad ones are not read beyond their end
// (I9, VERBS 3).
#include <endian.h>

#include "frame_builder.h"
#include "soft/packet.h"
#include "soft_support.h"

namespace millrace::test {
namespace {

struct Parsed {
  bool ok = false;
  soft::PacketFields fields;
  soft::PacketLayout layout;
  const soft::HeaderFields& outer() const { return fields.outer; }
  const soft::HeaderFields& inner() const { return fields.inner; }
};

/** Parses a copy that ends where the heap block ends, so that a sanitizer sees every overrun. */
Parsed parse(const std::vector<uint8_t>& frame, size_t bytes = SIZE_MAX) {
  Parsed out;
  bytes = std::min(bytes, frame.size());
  std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes]);
  memcpy(copy.get(), frame.data(), bytes);
  out.ok = soft::parse_frame(copy.get(), bytes, &out.fields, &out.layout);
  return out;
}

TEST(SoftPacket, EthernetAndNothingElse) {
  FrameBuilder frame;
  frame.ethernet(kMacB, kMacA, 0x1234).fill(46);
  Parsed p = parse(frame.data());
  ASSERT_TRUE(p.ok);
  EXPECT_EQ(p.outer().layers, soft::kLayerEth);
  EXPECT_EQ(memcmp(p.outer().dst_mac, kMacB, 6), 0);
  EXPECT_EQ(memcmp(p.outer().src_mac, kMacA, 6), 0);
  EXPECT_EQ(p.outer().ether_type, htobe16(0x1234));
  EXPECT_FALSE(parse(frame.data(), 13).ok);
}

TEST(SoftPacket, VlanAndUdpOverIpv4WithOptions) {
  FrameBuilder frame;
  frame.ethernet(kMacB, kMacA, 0x8100).be16(0x6064).be16(0x0800);
  frame.ipv4(0x0A000001, 0x0A000002, 17, 8 + 5, 8, 0x4000, 0x28, 9).udp(1000, 2000, 5);
  frame.text("hello").fill(20);  // Ethernet's padding
  Parsed p = parse(frame.data());
  ASSERT_TRUE(p.ok);
  EXPECT_EQ(p.outer().layers,
            soft::kLayerEth | soft::kLayerVlan | soft::kLayerIpv4 | soft::kLayerUdp);
  EXPECT_EQ(p.outer().vlan_tag, htobe16(0x6064));
  EXPECT_EQ(p.outer().ether_type, htobe16(0x0800));
  const uint8_t source[4] = {10, 0, 0, 1};
  EXPECT_EQ(memcmp(p.outer().src_ip, source, 4), 0);
  EXPECT_EQ(p.outer().protocol, 17);
  EXPECT_EQ(p.outer().traffic_class, 0x28);
  EXPECT_EQ(p.outer().hop_limit, 9);
  EXPECT_EQ(p.outer().ip_flags, soft::kIpDontFragment);
  EXPECT_EQ(p.outer().src_port, htobe16(1000));
  EXPECT_EQ(p.outer().dst_port, htobe16(2000));
  EXPECT_EQ(p.layout.ip, 18u);
  EXPECT_EQ(p.layout.ip_header, 28u);
  EXPECT_EQ(p.layout.l4, 46u);
  EXPECT_EQ(p.layout.l4_bytes, 13u);
}

TEST(SoftPacket, AFragmentHasNoPorts) {  // VERBS 3
  for (unsigned flags : {0x2000u, 0x2001u, 0x0001u}) {
    FrameBuilder frame;
    frame.ethernet(kMacB, kMacA, 0x0800).ipv4(1, 2, 17, 16, 0, flags).udp(1, 2, 8).fill(8);
    Parsed p = parse(frame.data());
    EXPECT_EQ(p.outer().layers, soft::kLayerEth | soft::kLayerIpv4) << flags;
    EXPECT_TRUE(p.layout.fragment);
    EXPECT_EQ(p.layout.l4, 0u);
    EXPECT_EQ(p.outer().dst_port, 0);
  }
  // IPv6: a fragment header with an offset, and an atomic one, which is none.
  for (bool atomic : {false, true}) {
    FrameBuilder frame;
    frame.ethernet(kMacB, kMacA, 0x86DD).ipv6(1, 2, 44, 8 + 16);
    frame.bytes({17, 0}).be16(atomic ? 0 : 8).be32(7).udp(1, 2, 8).fill(8);
    Parsed p = parse(frame.data());
    EXPECT_EQ(p.outer().protocol, 17);
    EXPECT_EQ((p.outer().layers & soft::kLayerUdp) != 0, atomic);
  }
}

TEST(SoftPacket, TcpOverIpv6BehindExtensionHeaders) {
  FrameBuilder frame;
  frame.ethernet(kMacB, kMacA, 0x86DD).ipv6(1, 2, 0, 8 + 16 + 20, 0x12345);
  frame.bytes({60, 0}).fill(6);  // hop by hop, 8 bytes
  frame.bytes({6, 1}).fill(14);  // destination options, 16 bytes
  frame.tcp(80, 443);
  Parsed p = parse(frame.data());
  EXPECT_EQ(p.outer().layers, soft::kLayerEth | soft::kLayerIpv6 | soft::kLayerTcp);
  EXPECT_EQ(p.outer().protocol, 6);
  EXPECT_EQ(p.outer().flow_label, htobe32(0x12345));
  EXPECT_EQ(p.outer().dst_ip[15], 2);
  EXPECT_EQ(p.outer().dst_port, htobe16(443));
  EXPECT_EQ(p.layout.ip_header, 64u);
}

TEST(SoftPacket, TunnelsShowTheirInnerHeaders) {
  FrameBuilder inner = udp_frame(0x0B000001, 0x0B000002, 5, 6, "in");
  const unsigned n = static_cast<unsigned>(inner.data().size());
  FrameBuilder vxlan;
  vxlan.ethernet(kMacA, kMacB, 0x0800).ipv4(1, 2, 17, 16 + n).udp(9, 4789, 8 + n).vxlan(0xABCDE);
  vxlan.data().insert(vxlan.data().end(), inner.data().begin(), inner.data().end());
  Parsed p = parse(vxlan.data());
  EXPECT_NE(p.outer().layers & soft::kLayerVxlan, 0u);
  EXPECT_EQ(p.outer().vni, htobe32(0xABCDE));
  EXPECT_EQ(p.inner().layers, soft::kLayerEth | soft::kLayerIpv4 | soft::kLayerUdp);
  EXPECT_EQ(p.inner().dst_port, htobe16(6));
  EXPECT_EQ(memcmp(p.inner().dst_mac, kMacB, 6), 0);

  FrameBuilder gre;
  const unsigned ip = n - 14;
  gre.ethernet(kMacA, kMacB, 0x0800).ipv4(1, 2, 47, 8 + ip).be16(0x2000).be16(0x0800).be32(77);
  gre.data().insert(gre.data().end(), inner.data().begin() + 14, inner.data().end());
  p = parse(gre.data());
  EXPECT_EQ(p.outer().layers, soft::kLayerEth | soft::kLayerIpv4 | soft::kLayerGre);
  EXPECT_EQ(p.outer().gre_key, htobe32(77));
  EXPECT_EQ(p.outer().gre_protocol, htobe16(0x0800));
  EXPECT_EQ(p.inner().layers, soft::kLayerIpv4 | soft::kLayerUdp);

  FrameBuilder esp;
  esp.ethernet(kMacA, kMacB, 0x0800).ipv4(1, 2, 50, 16).be32(0x11).be32(0x22).fill(8);
  p = parse(esp.data());
  EXPECT_EQ(p.outer().esp_spi, htobe32(0x11));
  EXPECT_EQ(p.outer().esp_sequence, htobe32(0x22));

  FrameBuilder mpls;
  mpls.ethernet(kMacA, kMacB, 0x8847).be32(0x12345140).fill(40);
  p = parse(mpls.data());
  EXPECT_EQ(p.outer().mpls, htobe32(0x12345140));
}

TEST(SoftPacket, EveryPrefixOfAFrameIsRead) {
  FrameBuilder inner = udp_frame(0x0B000001, 0x0B000002, 5, 6, "payload");
  const unsigned n = static_cast<unsigned>(inner.data().size());
  FrameBuilder frame;
  frame.ethernet(kMacA, kMacB, 0x8100).be16(5).be16(0x86DD).ipv6(1, 2, 0, 24 + n);
  frame.bytes({17, 0}).fill(6).udp(9, 4789, 8 + n).vxlan(1);
  frame.data().insert(frame.data().end(), inner.data().begin(), inner.data().end());
  const Parsed whole = parse(frame.data());
  ASSERT_NE(whole.inner().layers & soft::kLayerUdp, 0u);
  for (size_t bytes = 0; bytes < frame.data().size(); ++bytes) {
    const Parsed p = parse(frame.data(), bytes);
    EXPECT_EQ(p.ok, bytes >= 14);
    // A header counts once all of it is there, and the checksums of a cut frame say nothing.
    EXPECT_EQ(p.outer().layers & ~whole.outer().layers, 0u) << bytes;
    EXPECT_EQ((p.outer().layers & soft::kLayerIpv6) != 0, bytes >= 18 + 40) << bytes;
    EXPECT_EQ((p.outer().layers & soft::kLayerUdp) != 0, bytes >= 18 + 48 + 8) << bytes;
    EXPECT_EQ(p.inner().layers & ~whole.inner().layers, 0u) << bytes;
    EXPECT_EQ(p.layout.l4, 0u);
  }
}

TEST(SoftPacket, LengthsThatContradictThemselves) {
  struct {
    const char* name;
    std::function<void(std::vector<uint8_t>&)> change;
    uint32_t left;  ///< layers that may still be seen
  } cases[] = {
      {"IP version", [](auto& f) { f[14] = 0x55; }, soft::kLayerEth},
      {"header of 16 bytes", [](auto& f) { f[14] = 0x44; }, soft::kLayerEth},
      {"header beyond the packet", [](auto& f) { f[14] = 0x4F; }, soft::kLayerEth},
      {"total beyond the frame", [](auto& f) { f[16] = 0x10; },
       soft::kLayerEth | soft::kLayerIpv4 | soft::kLayerUdp},
      {"total below the header", [](auto& f) { f[16] = 0, f[17] = 19; }, soft::kLayerEth},
      {"UDP of 7 bytes", [](auto& f) { f[38] = 0, f[39] = 7; }, soft::kLayerEth | soft::kLayerIpv4},
      {"UDP beyond the packet", [](auto& f) { f[38] = 1; },
       soft::kLayerEth | soft::kLayerIpv4 | soft::kLayerUdp},
  };
  for (const auto& c : cases) {
    FrameBuilder frame = udp_frame(1, 2, 3, 4, "text");
    c.change(frame.data());
    const Parsed p = parse(frame.data());
    EXPECT_EQ(p.outer().layers, c.left) << c.name;
    EXPECT_EQ(p.layout.l4, 0u) << c.name;
  }
}

TEST(SoftPacket, ChecksumsAreFilledInAndChecked) {
  FrameBuilder udp6, tcp4;
  udp6.ethernet(kMacA, kMacB, 0x86DD).ipv6(1, 2, 17, 8 + 3).udp(7, 8, 3).text("odd");
  tcp4.ethernet(kMacA, kMacB, 0x0800).ipv4(0x0A0B0C0D, 0x01020304, 6, 20 + 4, 4).tcp(1, 2);
  tcp4.text("data");
  for (FrameBuilder frame : {udp_frame(0xC0000201, 0xC0000202, 1, 2, "hi"), udp6, tcp4}) {
    std::vector<uint8_t> f = frame.data();
    Parsed p = parse(f);
    ASSERT_NE(p.layout.l4, 0u);
    soft::fill_checksums(f.data(), p.fields, p.layout);
    EXPECT_TRUE(soft::checksums_are_ok(f.data(), p.fields, p.layout));
    for (size_t at : {size_t{p.layout.l4}, f.size() - 1}) {
      f[at] ^= 1;
      EXPECT_FALSE(soft::checksums_are_ok(f.data(), p.fields, p.layout)) << at;
      f[at] ^= 1;
    }
  }
  // The checksum of a header that is known from the books (RFC 1071's neighbours).
  const uint8_t header[20] = {0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11,
                              0x00, 0x00, 0xC0, 0xA8, 0x00, 0x01, 0xC0, 0xA8, 0x00, 0xC7};
  FrameBuilder frame;
  frame.ethernet(kMacA, kMacB, 0x0800);
  frame.data().insert(frame.data().end(), header, header + 20);
  frame.udp(1, 2, 0x73 - 28).fill(0x73 - 28);
  Parsed p = parse(frame.data());
  soft::fill_checksums(frame.data().data(), p.fields, p.layout);
  EXPECT_EQ(frame.data()[24], 0xB8);
  EXPECT_EQ(frame.data()[25], 0x61);
}

}  // namespace
}  // namespace millrace::test
