// UD: datagrams, their network header, and what is lost in silence.
#include "datagram_support.h"
#include "soft/grh.h"

namespace millrace::test {
namespace {

uint64_t drops(const DatagramEnd& end, soft::DropReason why) {
  return soft::read_port_counters(end.context.get()).drops[static_cast<size_t>(why)];
}

TEST(SoftUd, ADatagramArrivesWithItsSource) {
  Fabric fabric;
  for (bool foreign : {false, true}) {
    DatagramEnd::Options options;
    options.foreign = foreign;
    DatagramEnd a, b(options);
    verbs::AhPtr ah = a.ah_to_lid(b.lid(), 3);
    ASSERT_TRUE(ah);
    EXPECT_EQ(a.send(ah.get(), b.qpn(), "hello", 5, kQkey, IBV_SEND_SIGNALED, IBV_WR_SEND_WITH_IMM),
              0);
    ibv_wc sent = {}, got = {};
    ASSERT_TRUE(Endpoint::poll(a.send_cq.get(), &sent));
    EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
    EXPECT_EQ(sent.opcode, IBV_WC_SEND);
    EXPECT_EQ(sent.wr_id, 7u);
    ASSERT_TRUE(b.receive(&got));
    EXPECT_EQ(got.status, IBV_WC_SUCCESS);
    EXPECT_EQ(got.opcode, IBV_WC_RECV);
    EXPECT_EQ(got.byte_len, 45u);
    EXPECT_EQ(got.src_qp, a.qpn());
    EXPECT_EQ(got.qp_num, b.qpn());
    EXPECT_EQ(got.slid, a.lid());
    EXPECT_EQ(got.sl, 3);
    EXPECT_EQ(got.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM)) << "no GRH was asked for";
    EXPECT_EQ(got.imm_data, htobe32(0xABCD));
    EXPECT_EQ(b.text(got), "hello");
    for (int i = 0; i < 40; ++i) EXPECT_EQ(b.bytes(got.wr_id)[i], 0x5A) << "the room is not used";
  }
}

TEST(SoftUd, AGlobalAddressBringsItsHeaderAndTheWayBack) {
  Fabric fabric;
  for (const char* layer : {"infiniband", "ethernet"}) {
    Setting link("MILLRACE_SOFT_LINK", layer);
    Setting devices("MILLRACE_SOFT_DEVICES", "2");
    const bool ethernet = layer[0] == 'e';
    DatagramEnd a;
    DatagramEnd::Options on_the_other;
    on_the_other.device = "soft1";
    DatagramEnd b(on_the_other);
    for (uint8_t index = 0; index < (ethernet ? 4 : 1); ++index) {
      SCOPED_TRACE(base::format("%s %u", layer, index));
      verbs::AhPtr ah = a.ah_to_gid(b.gid(index), index, b.lid());
      EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "question"), IBV_WC_SUCCESS);
      ibv_wc wc = {};
      ASSERT_TRUE(b.receive(&wc));
      EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_GRH));
      EXPECT_EQ(b.text(wc), "question");
      EXPECT_EQ(wc.slid, ethernet ? 0 : 1);
      soft::NetworkHeader header;
      ASSERT_TRUE(soft::read_network_header(b.bytes(wc.wr_id), &header));
      const ibv_gid from = a.gid(index), to = b.gid(index);
      EXPECT_EQ(memcmp(&header.source, &from, 16), 0);
      EXPECT_EQ(memcmp(&header.destination, &to, 16), 0);
      EXPECT_EQ(header.traffic_class, 0x18);
      EXPECT_EQ(header.hop_limit, 64);
      if (ethernet) {
        EXPECT_EQ(header.type, soft::gid_type(soft::Link::kEthernet, index));
      }

      ibv_grh grh;
      memcpy(&grh, b.slot(wc.wr_id), sizeof(grh));
      verbs::AhPtr back(ibv_create_ah_from_wc(b.pd.get(), &wc, &grh, 1));
      ASSERT_TRUE(back) << soft::last_error().detail;
      EXPECT_EQ(b.send_and_wait(back.get(), wc.src_qp, "answer"), IBV_WC_SUCCESS);
      ASSERT_TRUE(a.receive(&wc));
      EXPECT_EQ(a.text(wc), "answer");
    }
  }
}

TEST(SoftUd, WhatCanNotBeDeliveredIsLostInSilenceAndCounted) {
  Fabric fabric;
  Setting devices("MILLRACE_SOFT_DEVICES", "2");
  DatagramEnd::Options one_slot;
  one_slot.slots = 1;
  DatagramEnd a, b(one_slot);
  verbs::AhPtr ah = a.ah_to_lid(b.lid());
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "first"), IBV_WC_SUCCESS);
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "second"), IBV_WC_SUCCESS);
  EXPECT_EQ(drops(a, soft::DropReason::kNoWqe), 1u);
  ibv_wc wc = {};
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(b.text(wc), "first");
  EXPECT_TRUE(b.nothing());
  EXPECT_EQ(b.post(0), 0);

  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "wrong key", kQkey + 1), IBV_WC_SUCCESS);
  EXPECT_EQ(drops(a, soft::DropReason::kQkey), 1u);
  ibv_port_attr port = {};
  EXPECT_EQ(ibv_query_port(b.context.get(), 1, &port), 0);
  EXPECT_EQ(port.qkey_viol_cntr, 1u);

  EXPECT_EQ(a.send_and_wait(ah.get(), 0xFFFFF0, "nobody"), IBV_WC_SUCCESS);
  EXPECT_EQ(drops(a, soft::DropReason::kNoQp), 1u);
  DatagramEnd::Options not_ready;
  not_ready.ready = false;
  DatagramEnd c(not_ready);
  EXPECT_EQ(a.send_and_wait(ah.get(), c.qpn(), "too early"), IBV_WC_SUCCESS);
  EXPECT_EQ(drops(a, soft::DropReason::kNoQp), 2u);

  verbs::AhPtr elsewhere = a.ah_to_lid(2);
  EXPECT_EQ(a.send_and_wait(elsewhere.get(), b.qpn(), "other port"), IBV_WC_SUCCESS);
  EXPECT_TRUE(b.nothing());
  DatagramEnd::Options second;
  second.device = "soft1";
  DatagramEnd d(second);
  EXPECT_EQ(drops(d, soft::DropReason::kUnreachable), 1u);
  verbs::AhPtr nowhere = a.ah_to_lid(77);
  EXPECT_EQ(a.send_and_wait(nowhere.get(), b.qpn(), "no port"), IBV_WC_SUCCESS);
  EXPECT_EQ(drops(a, soft::DropReason::kUnreachable), 1u);
  // After all that it still works.
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "last"), IBV_WC_SUCCESS);
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(b.text(wc), "last");
}

TEST(SoftUd, AQkeyWithTheTopBitMeansTheSendersOwn) {
  Fabric fabric;
  DatagramEnd a, b;
  verbs::AhPtr ah = a.ah_to_lid(b.lid());
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "own key", 0x80000000u), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(b.text(wc), "own key");
  // And a key can be changed in RTS.
  ibv_qp_attr attr = {};
  attr.qkey = 5;
  EXPECT_EQ(ibv_modify_qp(b.qp.get(), &attr, IBV_QP_QKEY), 0);
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "old"), IBV_WC_SUCCESS);
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "new", 5), IBV_WC_SUCCESS);
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(b.text(wc), "new");
}

TEST(SoftUd, ADatagramIsOnePacket) {
  Fabric fabric;
  DatagramEnd a, b;
  verbs::AhPtr ah = a.ah_to_lid(b.lid());
  const std::string whole(4096, 'x');
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), whole), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(b.text(wc), whole);
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), ""), IBV_WC_SUCCESS);
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(wc.byte_len, 40u);
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), whole + "x"), IBV_WC_LOC_LEN_ERR);
}

TEST(SoftUd, AFailedSendStopsSendingAlone) {  // SQE
  Fabric fabric;
  DatagramEnd a, b;
  verbs::AhPtr ah = a.ah_to_lid(b.lid()), back = b.ah_to_lid(a.lid());
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), std::string(4097, 'x')), IBV_WC_LOC_LEN_ERR);
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  EXPECT_EQ(ibv_query_qp(a.qp.get(), &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_SQE);
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "stopped"), IBV_WC_WR_FLUSH_ERR);
  EXPECT_TRUE(b.nothing());
  EXPECT_EQ(b.send_and_wait(back.get(), a.qpn(), "still here?"), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(a.receive(&wc));
  EXPECT_EQ(a.text(wc), "still here?");
  EXPECT_EQ(a.to(IBV_QPS_RTS), 0);
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "again"), IBV_WC_SUCCESS);
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(b.text(wc), "again");
}

TEST(SoftUd, AStoppedSendQueueStillReceives) {  // SQD
  Fabric fabric;
  DatagramEnd a, b;
  verbs::AhPtr ah = a.ah_to_lid(b.lid()), back = b.ah_to_lid(a.lid());
  EXPECT_EQ(a.to(IBV_QPS_SQD), 0);
  EXPECT_EQ(a.send(ah.get(), b.qpn(), "later", 5), 0);
  EXPECT_TRUE(b.nothing());
  EXPECT_EQ(b.send_and_wait(back.get(), a.qpn(), "now"), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(a.receive(&wc));
  EXPECT_EQ(a.text(wc), "now");
  EXPECT_EQ(a.to(IBV_QPS_RTS), 0);
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(b.text(wc), "later");
}

TEST(SoftUd, PortsOfDifferentLinkLayersDontMeet) {
  Fabric fabric;
  DatagramEnd a;
  Setting link("MILLRACE_SOFT_LINK", "ethernet");
  DatagramEnd b;
  verbs::AhPtr ah = a.ah_to_lid(1);
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "x"), IBV_WC_SUCCESS);
  EXPECT_TRUE(b.nothing());
  EXPECT_EQ(drops(a, soft::DropReason::kUnreachable), 1u);
}

TEST(SoftUd, TooSmallABufferFailsItsOwnerAlone) {
  Fabric fabric;
  DatagramEnd::Options options;
  options.post = false;
  DatagramEnd a, b(options);
  EXPECT_EQ(b.post(0, 44), 0);
  EXPECT_EQ(b.post(1), 0);
  verbs::AhPtr ah = a.ah_to_lid(b.lid());
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "12345"), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(wc.wr_id, 0u);
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR) << "it is in ERR";
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "still sends"), IBV_WC_SUCCESS);
  // Reset and made ready it receives again, and nothing of before.
  EXPECT_EQ(b.to(IBV_QPS_RESET), 0);
  EXPECT_EQ(b.ready(), 0);
  EXPECT_EQ(b.post(2), 0);
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "again"), IBV_WC_SUCCESS);
  ASSERT_TRUE(b.receive(&wc));
  EXPECT_EQ(b.text(wc), "again");
  EXPECT_EQ(wc.wr_id, 2u);
}

TEST(SoftUd, QpsMayShareABasicSrq) {
  Fabric fabric;
  DatagramEnd::Options options;
  options.srq = true;
  DatagramEnd a, b(options);
  verbs::AhPtr ah = a.ah_to_lid(b.lid());
  for (int i = 0; i < 40; ++i) {
    const std::string text = std::to_string(i);
    EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), text), IBV_WC_SUCCESS);
    ibv_wc wc = {};
    ASSERT_TRUE(b.receive(&wc));
    EXPECT_EQ(b.text(wc), text);
    EXPECT_EQ(b.post(static_cast<uint32_t>(wc.wr_id)), 0);
  }
}

TEST(SoftUd, AnAddressHandleOfAnotherPdIsRefused) {
  Fabric fabric;
  DatagramEnd a, b;
  verbs::PdPtr other(ibv_alloc_pd(a.context.get()));
  ibv_ah_attr attr = {};
  attr.port_num = 1;
  attr.dlid = b.lid();
  verbs::AhPtr ah(ibv_create_ah(other.get(), &attr));
  EXPECT_EQ(a.send_and_wait(ah.get(), b.qpn(), "x"), IBV_WC_LOC_QP_OP_ERR);
}

TEST(SoftUd, MasksOfItsTransitions) {  // VERBS 2.8, for UD
  Fabric fabric;
  DatagramEnd::Options options;
  options.ready = false;
  DatagramEnd a(options);
  EXPECT_EQ(a.to(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT), EINVAL) << "QKEY is missing";
  EXPECT_EQ(a.to(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_ACCESS_FLAGS),
            EINVAL);
  EXPECT_EQ(a.to(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
  EXPECT_EQ(a.to(IBV_QPS_RTR, IBV_QP_AV), EINVAL);
  EXPECT_EQ(a.to(IBV_QPS_RTR), 0);
  EXPECT_EQ(a.to(IBV_QPS_RTS), EINVAL) << "SQ_PSN is missing";
  EXPECT_EQ(a.to(IBV_QPS_RTS, IBV_QP_SQ_PSN), 0);
  EXPECT_EQ(a.to(IBV_QPS_SQD), 0);
  EXPECT_EQ(a.to(IBV_QPS_RTS), 0);
  ibv_send_wr write = {}, *bad = nullptr;
  write.opcode = IBV_WR_RDMA_WRITE;
  EXPECT_EQ(ibv_post_send(a.qp.get(), &write, &bad), EINVAL);
}

MILLRACE_CHILD(ud_sender) {
  soft::signal_at_step(std::stoull(parent.arguments[1]), std::stoi(parent.arguments[2]));
  {
    DatagramEnd end;
    verbs::AhPtr ah = end.ah_to_lid(1);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(end.send_and_wait(ah.get(), static_cast<uint32_t>(std::stoul(parent.arguments[0])),
                                  "victim"),
                IBV_WC_SUCCESS);
      parent.say("sent");
    }
  }
  parent.say("through");
  return ::testing::Test::HasFailure() ? 1 : 0;
}

TEST(SoftUd, ASenderKilledAtEveryStepKeepsNothing) {
  Fabric fabric;
  DatagramEnd::Options options;
  options.slots = 2;
  DatagramEnd end(options);
  verbs::AhPtr ah = end.ah_to_lid(1);
  bool through = false;
  uint64_t step = 1;
  for (; !through && step < 2000; ++step) {
    SCOPED_TRACE(step);
    Child child("ud_sender",
                {std::to_string(end.qpn()), std::to_string(step), std::to_string(SIGKILL)});
    uint64_t reported = 0, got = 0;
    for (std::string line = child.hear(); !line.empty(); line = child.hear()) {
      reported += line == "sent" ? 1 : 0;
      through |= line == "through";
    }
    const int code = child.wait();
    if (code != 0) through = false;
    ASSERT_TRUE(code == 0 || code == 128 + SIGKILL) << code;
    // What it was told went out is here (there were two WQEs), and both WQEs come back.
    const auto drain = [&] {
      ibv_wc wc = {};
      uint64_t own = 0;
      while (ibv_poll_cq(end.cq.get(), 1, &wc) == 1) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        if (end.text(wc) == "victim") {
          ++got;
        } else {
          ++own;
        }
        EXPECT_EQ(end.post(static_cast<uint32_t>(wc.wr_id)), 0);
      }
      return own;
    };
    ASSERT_TRUE(eventually([&] {
      drain();
      return got >= reported;
    }));
    ASSERT_TRUE(eventually([&] {
      drain();
      for (int i = 0; i < 2; ++i)
        EXPECT_EQ(end.send_and_wait(ah.get(), end.qpn(), "own"), IBV_WC_SUCCESS);
      return drain() == 2;
    }));
    ASSERT_LE(got, reported + 1);
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  expect_walked(through, step - 1);
}

}  // namespace
}  // namespace millrace::test
