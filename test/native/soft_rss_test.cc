// Work queues, indirection tables and RAW_PACKET QPs that spread frames over them.
#include <set>

#include "datagram_support.h"
#include "flow_builder.h"
#include "frame_builder.h"
#include "soft/rss.h"

namespace millrace::test {
namespace {

/** The key that the published test vectors are for. */
constexpr uint8_t kKey[40] = {0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
                              0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
                              0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
                              0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

uint32_t hash_of(const std::vector<uint8_t>& frame, uint64_t fields) {
  soft::Spread spread;
  spread.fields = fields;
  memcpy(spread.key, kKey, sizeof(kKey));
  soft::PacketFields parsed;
  soft::PacketLayout layout;
  EXPECT_TRUE(soft::parse_frame(frame.data(), frame.size(), &parsed, &layout));
  return soft::spread_hash(spread, parsed);
}

TEST(SoftRss, TheHashIsToeplitz) {
  constexpr uint64_t ip = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4;
  constexpr uint64_t ports = IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;
  // 66.9.149.187:2794 to 161.142.100.80:1766, and 199.92.111.2:14230 to 65.69.140.83:4739.
  const auto first = udp_frame(0x420995BB, 0xA18E6450, 2794, 1766, "x").data();
  EXPECT_EQ(hash_of(first, ip), 0x323e8fc2u);
  EXPECT_EQ(hash_of(first, ip | ports), 0x51ccc178u);
  const auto second = udp_frame(0xC75C6F02, 0x41458C53, 14230, 4739, "x").data();
  EXPECT_EQ(hash_of(second, ip), 0xd718262au);
  EXPECT_EQ(hash_of(second, ip | ports), 0xc626b0eau);
  // What the frame does not have is left out.
  EXPECT_EQ(hash_of(first, ip | IBV_RX_HASH_SRC_PORT_TCP), 0x323e8fc2u);
}

class SoftRssQp : public ::testing::Test {
 protected:
  static constexpr uint32_t kWqs = 4;
  Setting link_{"MILLRACE_SOFT_LINK", "ethernet"};
  Fabric fabric_;

  static DatagramEnd::Options raw() {
    DatagramEnd::Options options;
    options.type = IBV_QPT_RAW_PACKET;
    return options;
  }
};

TEST_F(SoftRssQp, FramesOfOneConversationStayInOneQueue) {
  if (geteuid() != 0) GTEST_SKIP() << "needs CAP_NET_RAW";
  DatagramEnd a(raw());
  ibv_context* context = a.context.get();
  ibv_wq* wqs[kWqs] = {};
  for (uint32_t i = 0; i < kWqs; ++i) {
    ibv_wq_init_attr attr = {};
    attr.wq_type = IBV_WQT_RQ;
    attr.max_wr = 64;
    attr.max_sge = 1;
    attr.pd = a.pd.get();
    attr.cq = a.cq.get();
    wqs[i] = ibv_create_wq(context, &attr);
    ASSERT_NE(wqs[i], nullptr) << soft::last_error().detail;
    ibv_wq_attr ready = {};
    ready.attr_mask = IBV_WQ_ATTR_STATE;
    ready.wq_state = IBV_WQS_RDY;
    ASSERT_EQ(ibv_modify_wq(wqs[i], &ready), 0) << soft::last_error().detail;
    for (uint32_t k = 0; k < 32; ++k) {  // more than are sent
      const uint32_t slot = (i * 4 + k) % a.options.slots;
      ibv_sge sge = {reinterpret_cast<uintptr_t>(a.slot(slot)), a.options.slot_bytes, a.mr->lkey};
      ibv_recv_wr wr = {}, *bad = nullptr;
      wr.wr_id = slot;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      ASSERT_EQ(ibv_post_wq_recv(wqs[i], &wr, &bad), 0);
    }
  }
  ibv_rwq_ind_table_init_attr table_attr = {};
  table_attr.log_ind_tbl_size = 2;
  table_attr.ind_tbl = wqs;
  ibv_rwq_ind_table* table = ibv_create_rwq_ind_table(context, &table_attr);
  ASSERT_NE(table, nullptr) << soft::last_error().detail;
  EXPECT_EQ(ibv_destroy_wq(wqs[0]), EBUSY);

  ibv_qp_init_attr_ex attr = {};
  attr.qp_type = IBV_QPT_RAW_PACKET;
  attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
  attr.pd = a.pd.get();
  attr.rwq_ind_tbl = table;
  attr.rx_hash_conf.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
  attr.rx_hash_conf.rx_hash_key_len = sizeof(kKey);
  attr.rx_hash_conf.rx_hash_key = const_cast<uint8_t*>(kKey);
  attr.rx_hash_conf.rx_hash_fields_mask =
      IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_IPV6;
  EXPECT_EQ(ibv_create_qp_ex(context, &attr), nullptr) << "IPv4 and IPv6";
  EXPECT_EQ(errno, EINVAL);
  attr.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4;
  verbs::QpPtr rss(ibv_create_qp_ex(context, &attr));
  ASSERT_TRUE(rss) << soft::last_error().detail;
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), EBUSY);
  FlowBuilder rule;
  rule.udp(5001);
  ibv_flow* flow = ibv_create_flow(rss.get(), rule.attr());
  ASSERT_NE(flow, nullptr) << soft::last_error().detail;

  std::set<uint32_t> used;
  for (uint32_t source = 1; source <= 12; ++source) {
    const auto frame = udp_frame(source, 0x0A000001, 9, 5001, "x").data();
    const uint32_t expected =
        wqs[hash_of(frame, attr.rx_hash_conf.rx_hash_fields_mask) % kWqs]->wq_num;
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(a.send_frame(frame), IBV_WC_SUCCESS);
      ibv_wc wc = {};
      ASSERT_TRUE(a.receive(&wc));
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.byte_len, frame.size());
      EXPECT_EQ(wc.qp_num, expected);
      used.insert(wc.qp_num);
    }
  }
  EXPECT_GT(used.size(), 1u) << "they were spread";
  EXPECT_EQ(rss.close(), EBUSY);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(rss.close(), 0);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  // What is left in a queue is flushed in ERR.
  ibv_wq_attr error = {};
  error.attr_mask = IBV_WQ_ATTR_STATE;
  error.wq_state = IBV_WQS_ERR;
  EXPECT_EQ(ibv_modify_wq(wqs[0], &error), 0);
  ibv_wc wc = {};
  EXPECT_TRUE(a.receive(&wc));
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  for (ibv_wq* wq : wqs) EXPECT_EQ(ibv_destroy_wq(wq), 0);
}

}  // namespace
}  // namespace millrace::test
