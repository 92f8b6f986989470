// Devices, ports, GIDs and address handles, on both link layers (VERBS 1, 5).
#include <endian.h>

#include "soft/checksum.h"
#include "soft/grh.h"
#include "soft/port.h"
#include "soft_support.h"

namespace millrace::test {
namespace {

/** Environment variables for one test. */
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }

 private:
  const char* name_;
};

struct Opened {
  verbs::ContextPtr context;
  verbs::PdPtr pd;
  explicit Opened(const char* name = "soft") {
    base::Result<ibv_context*> opened = verbs::open_device(name);
    EXPECT_TRUE(opened.ok()) << opened.status().detail;
    if (!opened.ok()) return;
    context = verbs::ContextPtr(opened.value());
    pd = verbs::PdPtr(ibv_alloc_pd(context.get()));
  }
};

ibv_ah_attr to_gid(const ibv_gid& gid, uint8_t sgid_index = 0) {
  ibv_ah_attr attr = {};
  attr.port_num = 1;
  attr.is_global = 1;
  attr.grh.dgid = gid;
  attr.grh.sgid_index = sgid_index;
  attr.grh.hop_limit = 64;
  return attr;
}

TEST(SoftPorts, AsManyDevicesAsAsked) {
  Setting devices("MILLRACE_SOFT_DEVICES", "3");
  int count = -1;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(count, 3);
  EXPECT_EQ(list[3], nullptr);
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(ibv_get_device_name(list[k]), base::format("soft%d", k));
    EXPECT_EQ(ibv_get_device_index(list[k]), k);
    for (int other = 0; other < k; ++other)
      EXPECT_NE(ibv_get_device_guid(list[k]), ibv_get_device_guid(list[other]));
  }
  ibv_free_device_list(list);
}

TEST(SoftPorts, ANumberOfDevicesThatCanNotBe) {
  for (const char* wrong : {"0", "9", "two", "1x"}) {
    Setting devices("MILLRACE_SOFT_DEVICES", wrong);
    errno = 0;
    EXPECT_EQ(ibv_get_device_list(nullptr), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_NE(soft::last_error().detail.find(wrong), std::string::npos);
  }
  Fabric fabric;
  Setting link("MILLRACE_SOFT_LINK", "token-ring");
  base::Result<ibv_context*> opened = verbs::open_device("soft");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code, EINVAL);
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftPorts, AnInfiniBandPort) {
  Fabric fabric;
  Setting devices("MILLRACE_SOFT_DEVICES", "2");
  for (uint16_t k = 0; k < 2; ++k) {
    Opened open(k == 0 ? "soft0" : "soft1");
    ibv_port_attr port = {};
    ASSERT_EQ(ibv_query_port(open.context.get(), 1, &port), 0);
    EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
    EXPECT_EQ(port.lid, k + 1);
    EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
    EXPECT_EQ(port.flags & IBV_QPF_GRH_REQUIRED, 0);
    ibv_gid gid;
    ASSERT_EQ(ibv_query_gid(open.context.get(), 1, 0, &gid), 0);
    EXPECT_EQ(gid.global.interface_id, ibv_get_device_guid(open.context->device));
    EXPECT_EQ(gid.global.subnet_prefix, htobe64(0xFE80000000000000u));
    ibv_gid_entry entry;
    ASSERT_EQ(ibv_query_gid_ex(open.context.get(), 1, 0, &entry, 0), 0);
    EXPECT_EQ(entry.gid_type, static_cast<uint32_t>(IBV_GID_TYPE_IB));
    ibv_port_attr second = {};
    EXPECT_NE(ibv_query_port(open.context.get(), 2, &second), 0);
    // Entries that are not in use are there and empty.
    const ibv_gid empty = {};
    ASSERT_GT(port.gid_tbl_len, 1);
    EXPECT_EQ(ibv_query_gid(open.context.get(), 1, 1, &gid), 0);
    EXPECT_EQ(memcmp(&gid, &empty, sizeof(gid)), 0);
    EXPECT_EQ(ibv_query_gid_ex(open.context.get(), 1, 1, &entry, 0), ENODATA);
    EXPECT_NE(ibv_query_gid(open.context.get(), 1, port.gid_tbl_len, &gid), 0);
  }
}

TEST(SoftPorts, AnEthernetPort) {
  Fabric fabric;
  Setting link("MILLRACE_SOFT_LINK", "ethernet");
  Opened open;
  ibv_port_attr port = {};
  ASSERT_EQ(ibv_query_port(open.context.get(), 1, &port), 0);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.lid, 0);
  EXPECT_EQ(port.sm_lid, 0);
  EXPECT_NE(port.flags & IBV_QPF_GRH_REQUIRED, 0);
  EXPECT_NE(port.port_cap_flags & IBV_PORT_IP_BASED_GIDS, 0u);
  ASSERT_GE(port.gid_tbl_len, 4);
  // VERBS 5: who chooses a GID wants to see v2 and IPv4-mapped.
  ibv_gid_entry table[4];
  ASSERT_EQ(ibv_query_gid_table(open.context.get(), table, 4, 0), 4);
  EXPECT_EQ(table[0].gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V1));
  EXPECT_EQ(table[1].gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V2));
  EXPECT_EQ(memcmp(&table[0].gid, &table[1].gid, 16), 0);
  EXPECT_FALSE(soft::is_ipv4_mapped(table[1].gid));
  EXPECT_EQ(table[3].gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V2));
  EXPECT_TRUE(soft::is_ipv4_mapped(table[3].gid));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(table[i].gid_index, i);
    EXPECT_EQ(table[i].port_num, 1u);
    ibv_gid_entry entry;
    ASSERT_EQ(ibv_query_gid_ex(open.context.get(), 1, i, &entry, 0), 0);
    EXPECT_EQ(memcmp(&entry, &table[i], sizeof(entry)), 0);
  }
  ibv_gid_entry entry;
  EXPECT_EQ(ibv_query_gid_ex(open.context.get(), 1, 4, &entry, 0), ENODATA);
  EXPECT_EQ(ibv_query_gid_ex(open.context.get(), 1, 0, &entry, 1), EINVAL);
  EXPECT_EQ(ibv_query_gid_ex(open.context.get(), 2, 0, &entry, 0), EINVAL);
  EXPECT_EQ(ibv_query_gid_table(open.context.get(), table, 3, 0), -EINVAL);
}

TEST(SoftPorts, PKeysClockAndTheExtendedQuery) {
  Fabric fabric;
  Opened open;
  __be16 pkey = 0;
  ASSERT_EQ(ibv_query_pkey(open.context.get(), 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, htobe16(0xFFFF));
  EXPECT_EQ(ibv_get_pkey_index(open.context.get(), 1, pkey), 0);
  EXPECT_EQ(ibv_get_pkey_index(open.context.get(), 1, htobe16(0x8001)), -1);
  EXPECT_NE(ibv_query_pkey(open.context.get(), 1, 1, &pkey), 0);

  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(open.context.get(), nullptr, &attr), 0);
  EXPECT_EQ(attr.orig_attr.phys_port_cnt, 1);
  EXPECT_EQ(attr.phys_port_cnt_ex, 1u);
  EXPECT_EQ(attr.odp_caps.general_caps, 0u);
  EXPECT_EQ(attr.tso_caps.max_tso, 0u);
  EXPECT_EQ(attr.max_dm_size, 0u);
  EXPECT_EQ(attr.completion_timestamp_mask, ~uint64_t{0});
  EXPECT_EQ(attr.device_cap_flags_ex, attr.orig_attr.device_cap_flags);
  // What is refused is not offered either.
  EXPECT_EQ(attr.orig_attr.device_cap_flags & unsigned{IBV_DEVICE_SRQ_RESIZE}, 0u);
  EXPECT_EQ(attr.packet_pacing_caps.qp_rate_limit_max, 0u);
  EXPECT_EQ(attr.packet_pacing_caps.supported_qpts, 0u);

  ibv_values_ex values = {};
  values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  ASSERT_EQ(ibv_query_rt_values_ex(open.context.get(), &values), 0);
  EXPECT_EQ(values.comp_mask, static_cast<uint32_t>(IBV_VALUES_MASK_RAW_CLOCK));
  const long first = values.raw_clock.tv_nsec;
  ASSERT_EQ(ibv_query_rt_values_ex(open.context.get(), &values), 0);
  EXPECT_GE(values.raw_clock.tv_nsec, first);
}

TEST(SoftPorts, AddressHandlesAreCheckedAndKeepTheirPd) {
  Fabric fabric;
  Opened open;
  ibv_ah_attr attr = {};
  attr.port_num = 1;
  attr.dlid = 1;
  verbs::AhPtr handle(ibv_create_ah(open.pd.get(), &attr));
  ASSERT_TRUE(handle) << soft::last_error().detail;
  EXPECT_EQ(ibv_dealloc_pd(open.pd.get()), EBUSY);
  EXPECT_EQ(handle.close(), 0);
  struct Wrong {
    const char* name;
    std::function<void(ibv_ah_attr&)> change;
  } wrongs[] = {
      {"port 2", [](ibv_ah_attr& a) { a.port_num = 2; }},
      {"dlid 0", [](ibv_ah_attr& a) { a.dlid = 0; }},
      {"permissive", [](ibv_ah_attr& a) { a.dlid = 0xFFFF; }},
      {"sgid_index", [](ibv_ah_attr& a) { a.is_global = 1, a.grh.sgid_index = 9; }},
      {"group without GRH", [](ibv_ah_attr& a) { a.dlid = 0xC001; }},
  };
  for (const Wrong& wrong : wrongs) {
    ibv_ah_attr bad = attr;
    wrong.change(bad);
    errno = 0;
    EXPECT_EQ(ibv_create_ah(open.pd.get(), &bad), nullptr) << wrong.name;
    EXPECT_EQ(errno, EINVAL) << wrong.name;
  }
}

TEST(SoftPorts, AnEthernetAddressMustBeGlobal) {
  Fabric fabric;
  Setting link("MILLRACE_SOFT_LINK", "ethernet");
  Opened open;
  ibv_ah_attr attr = {};
  attr.port_num = 1;
  attr.dlid = 1;
  EXPECT_EQ(ibv_create_ah(open.pd.get(), &attr), nullptr);
  EXPECT_NE(soft::last_error().detail.find("is_global"), std::string::npos);
  ibv_gid gid;
  ASSERT_EQ(ibv_query_gid(open.context.get(), 1, 3, &gid), 0);
  attr = to_gid(gid, 3);
  verbs::AhPtr handle(ibv_create_ah(open.pd.get(), &attr));
  EXPECT_TRUE(handle);
  uint8_t mac[6] = {};
  uint16_t vid = 0;
  EXPECT_EQ(ibv_resolve_eth_l2_from_gid(open.context.get(), &attr, mac, &vid), 0);
  const uint8_t expected[6] = {0x02, 's', 'o', 'f', 't', '0'};
  EXPECT_EQ(memcmp(mac, expected, 6), 0);
  EXPECT_EQ(vid, 0xFFFF);
}

/** Lays a header out as a receiver finds it and asks for the address that answers it. */
ibv_ah_attr answer_to(Opened& open, const soft::NetworkHeader& header, int* result) {
  ibv_grh grh;
  soft::write_network_header(header, 100, reinterpret_cast<uint8_t*>(&grh));
  ibv_wc wc = {};
  wc.wc_flags = IBV_WC_GRH;
  wc.slid = 7;
  wc.sl = 3;
  ibv_ah_attr attr = {};
  *result = ibv_init_ah_from_wc(open.context.get(), 1, &wc, &grh, &attr);
  return attr;
}

TEST(SoftPorts, TheAddressOfACompletion) {
  Fabric fabric;
  for (const char* layer : {"infiniband", "ethernet"}) {
    Setting link("MILLRACE_SOFT_LINK", layer);
    const bool ethernet = layer[0] == 'e';
    const soft::Link kind = ethernet ? soft::Link::kEthernet : soft::Link::kInfiniband;
    Opened open;
    for (uint32_t i = 0; i < soft::gid_count(kind); ++i) {
      soft::NetworkHeader header;
      header.source = soft::port_gid(kind, 1, i);
      header.destination = soft::port_gid(kind, 0, i);
      header.type = soft::gid_type(kind, i);
      header.traffic_class = 0x20;
      header.hop_limit = 64;
      int result = -1;
      ibv_ah_attr attr = answer_to(open, header, &result);
      ASSERT_EQ(result, 0) << layer << i << soft::last_error().detail;
      EXPECT_EQ(attr.is_global, 1);
      EXPECT_EQ(attr.grh.sgid_index, i) << layer;
      EXPECT_EQ(memcmp(&attr.grh.dgid, &header.source, 16), 0);
      EXPECT_EQ(attr.grh.traffic_class, 0x20);
      EXPECT_EQ(attr.dlid, 7);
      EXPECT_EQ(attr.sl, 3);
      EXPECT_EQ(attr.port_num, 1);
      header.destination = soft::port_gid(kind, 5, i);  // somebody else's
      (void)answer_to(open, header, &result);
      EXPECT_EQ(result, -1);
    }
    // Without a GRH the LID is all there is.
    ibv_wc wc = {};
    wc.slid = 4;
    ibv_ah_attr attr = {};
    EXPECT_EQ(ibv_init_ah_from_wc(open.context.get(), 1, &wc, nullptr, &attr), 0);
    EXPECT_EQ(attr.is_global, 0);
    EXPECT_EQ(attr.dlid, 4);
    ibv_grh garbage = {};
    wc.wc_flags = IBV_WC_GRH;
    EXPECT_EQ(ibv_init_ah_from_wc(open.context.get(), 1, &wc, &garbage, &attr), -1);
  }
}

TEST(SoftPorts, AnIpv4HeaderLiesInTheLastTwentyBytes) {
  soft::NetworkHeader header;
  header.source = soft::port_gid(soft::Link::kEthernet, 0, 3);
  header.destination = soft::port_gid(soft::Link::kEthernet, 1, 3);
  header.type = IBV_GID_TYPE_ROCE_V2;
  header.hop_limit = 9;
  header.traffic_class = 0x10;
  uint8_t bytes[40];
  soft::write_network_header(header, 256, bytes);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(bytes[i], 0);
  const uint8_t* ip = bytes + 20;
  EXPECT_EQ(ip[0], 0x45);
  EXPECT_EQ(ip[1], 0x10);
  EXPECT_EQ(ip[2] << 8 | ip[3], 20 + 8 + 12 + 8 + 256 + 4);  // IP, UDP, BTH, DETH, payload, ICRC
  EXPECT_EQ(ip[8], 9);
  EXPECT_EQ(ip[9], 17);
  EXPECT_EQ(soft::internet_checksum(ip, 20), 0);
  EXPECT_EQ(memcmp(ip + 12, header.source.raw + 12, 4), 0);
  EXPECT_EQ(memcmp(ip + 16, header.destination.raw + 12, 4), 0);
  // The same over IPv6, and a GRH.
  header.source = soft::port_gid(soft::Link::kEthernet, 0, 1);
  soft::write_network_header(header, 256, bytes);
  EXPECT_EQ(bytes[0] >> 4, 6);
  EXPECT_EQ(bytes[6], 17);
  header.type = IBV_GID_TYPE_ROCE_V1;
  soft::write_network_header(header, 256, bytes);
  EXPECT_EQ(bytes[6], 0x1B);
}

}  // namespace
}  // namespace millrace::test
