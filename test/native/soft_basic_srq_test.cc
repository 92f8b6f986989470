// RC with a basic SRQ, also on a device without XRC.
#include "soft_support.h"

namespace millrace::test {
namespace {

Connected::Options shared() {
  Connected::Options options;
  options.srq = true;
  return options;
}

TEST(SoftBasicSrq, ManyQueuePairsReceiveFromOne) {
  Fabric fabric;
  Connected server(shared());
  // A second QP on the same SRQ with CQs of its own: completions go to the QP's CQ, not the SRQ's.
  verbs::CqPtr other_cq(ibv_create_cq(server.context, 16, nullptr, nullptr, 0));
  ibv_qp_init_attr attr = {};
  attr.qp_type = IBV_QPT_RC;
  attr.send_cq = attr.recv_cq = other_cq.get();
  attr.srq = server.srq.get();
  attr.cap.max_send_wr = 4;
  verbs::QpPtr second(ibv_create_qp(server.pd.get(), &attr));
  ASSERT_TRUE(second) << soft::last_error().detail;
  EXPECT_EQ(second->srq, server.srq.get());
  Connected one, two;
  ASSERT_EQ(server.connect(one.qpn()), 0);
  ASSERT_EQ(one.connect(server.qpn()), 0);
  std::swap(server.qp, second);
  server.options.post = false;
  ASSERT_EQ(server.connect(two.qpn()), 0);
  ASSERT_EQ(two.connect(server.qpn()), 0);
  ibv_send_wr wr = one.wr(IBV_WR_SEND, 8, 1);
  ASSERT_EQ(one.run(wr), IBV_WC_SUCCESS);
  wr = two.wr(IBV_WR_SEND, 8, 2);
  ASSERT_EQ(two.run(wr), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(server.poll_received(&wc));
  EXPECT_EQ(wc.qp_num, second->qp_num);
  EXPECT_EQ(wc.wr_id, 0u);
  ASSERT_TRUE(Endpoint::poll(other_cq.get(), &wc));
  EXPECT_EQ(wc.qp_num, server.qpn());
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(ibv_destroy_srq(server.srq.get()), EBUSY);
  EXPECT_EQ(second.close(), 0);
  EXPECT_EQ(server.qp.close(), 0);
  EXPECT_EQ(server.srq.close(), 0);
}

TEST(SoftBasicSrq, WhatItIsAndIsNot) {
  Fabric fabric;
  Connected server(shared());
  uint32_t number = 0;
  EXPECT_EQ(ibv_get_srq_num(server.srq.get(), &number), EOPNOTSUPP);  // VERBS 2.3
  ibv_srq_attr larger = {};
  larger.max_wr = 32;
  EXPECT_EQ(ibv_modify_srq(server.srq.get(), &larger, IBV_SRQ_MAX_WR), EOPNOTSUPP);
  ASSERT_EQ(server.init(), 0);
  ibv_recv_wr receive = {};
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_recv(server.qp.get(), &receive, &bad), EINVAL);
  EXPECT_EQ(bad, &receive);
  for (uint32_t i = 0; i < server.options.slots; ++i) ASSERT_EQ(server.post(i), 0);
  EXPECT_EQ(server.post(0), ENOMEM);
  ibv_srq_attr attr = {};
  attr.srq_limit = server.options.slots + 1;
  EXPECT_EQ(ibv_modify_srq(server.srq.get(), &attr, IBV_SRQ_LIMIT), EINVAL);
  ibv_srq_init_attr init = {};
  init.attr.max_wr = 16385;
  EXPECT_EQ(ibv_create_srq(server.pd.get(), &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
  // An XRC SRQ is for XRC alone, and a basic one is not found by its number over XRC.
  Endpoint xrc;
  ibv_qp_init_attr qp = {};
  qp.qp_type = IBV_QPT_RC;
  qp.send_cq = qp.recv_cq = xrc.cq.get();
  qp.srq = xrc.srq.get();
  EXPECT_EQ(ibv_create_qp(xrc.pd.get(), &qp), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(xrc.connect(xrc.target_qpn()), 0);
  const uint64_t value = 1;
  ASSERT_EQ(xrc.send(server.srq->handle, &value, sizeof(value)), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(xrc.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_REM_INV_REQ_ERR);
}

TEST(SoftBasicSrq, LimitIsTold) {
  Fabric fabric;
  Pair pair(Connected::Options{}, shared());
  ibv_srq_attr attr = {};
  attr.srq_limit = pair.b.options.slots;
  ASSERT_EQ(ibv_modify_srq(pair.b.srq.get(), &attr, IBV_SRQ_LIMIT), 0);
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 1);
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(pair.b.poll_received(&wc));
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(pair.b.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  ibv_ack_async_event(&event);
}

TEST(SoftBasicSrq, ErrTellsOfTheLastWqe) {
  Fabric fabric;
  Pair pair(Connected::Options{}, shared());
  ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 1);
  ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  ASSERT_EQ(pair.b.modify(IBV_QPS_ERR), 0);
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(pair.b.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_EQ(event.element.qp, pair.b.qp.get());
  ibv_ack_async_event(&event);
  // What had arrived is there; nothing of the SRQ is flushed.
  ibv_wc wc = {};
  ASSERT_TRUE(pair.b.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_poll_cq(pair.b.recv_cq.get(), 1, &wc), 0);
}

TEST(SoftBasicSrq, ResetGivesTheWqesBack) {
  Fabric fabric;
  Pair pair(Connected::Options{}, shared());
  for (uint64_t i = 0; i < 3; ++i) {
    ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, i);
    ASSERT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  }
  EXPECT_EQ(pair.b.post(0), ENOMEM);
  ASSERT_EQ(pair.b.modify(IBV_QPS_RESET), 0);  // purges the CQ (VERBS 1, lesson 4)
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(pair.b.recv_cq.get(), 1, &wc), 0);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(pair.b.post(i), 0);
  EXPECT_EQ(pair.b.post(0), ENOMEM);
}

/** VERBS 2.10's counterpart: keys in the WQE are checked against the SRQ's PD, R_Keys against the
 * QP's. */
TEST(SoftBasicSrq, TwoDomains) {
  Fabric fabric;
  Connected server(shared());
  verbs::PdPtr other(ibv_alloc_pd(server.context));
  ibv_qp_init_attr attr = {};
  attr.qp_type = IBV_QPT_RC;
  attr.send_cq = server.send_cq.get();
  attr.recv_cq = server.recv_cq.get();
  attr.srq = server.srq.get();
  attr.cap.max_send_wr = 4;
  verbs::QpPtr qp(ibv_create_qp(other.get(), &attr));
  ASSERT_TRUE(qp);
  std::swap(server.qp, qp);
  Connected client;
  ASSERT_EQ(server.connect(client.qpn()), 0);
  ASSERT_EQ(client.connect(server.qpn()), 0);
  ibv_send_wr wr = client.wr(IBV_WR_SEND, 8, 1);
  EXPECT_EQ(client.run(wr), IBV_WC_SUCCESS);
  wr = client.wr(IBV_WR_RDMA_WRITE, 8, 2);
  wr.wr.rdma.remote_addr = reinterpret_cast<uintptr_t>(server.buffer);
  wr.wr.rdma.rkey = server.mr->rkey;
  EXPECT_EQ(client.run(wr), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(server.qp.close(), 0);
  EXPECT_EQ(qp.close(), 0);
}

TEST(SoftBasicSrq, ADeviceWithoutXrc) {
  Fabric fabric;
  setenv("MILLRACE_SOFT_XRC", "0", 1);
  {
    Pair pair(Connected::Options{}, shared());
    ibv_device_attr device = {};
    ASSERT_EQ(ibv_query_device(pair.a.context, &device), 0);
    EXPECT_EQ(device.device_cap_flags & IBV_DEVICE_XRC, 0u);
    ibv_xrcd_init_attr domain = {};
    domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    domain.fd = -1;
    domain.oflags = O_CREAT;
    EXPECT_EQ(ibv_open_xrcd(pair.a.context, &domain), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    ibv_qp_init_attr_ex attr = {};
    attr.qp_type = IBV_QPT_XRC_SEND;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pair.a.pd.get();
    attr.send_cq = pair.a.send_cq.get();
    EXPECT_EQ(ibv_create_qp_ex(pair.a.context, &attr), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    ibv_send_wr wr = pair.a.wr(IBV_WR_SEND, 8, 1);
    EXPECT_EQ(pair.a.run(wr), IBV_WC_SUCCESS);
  }
  unsetenv("MILLRACE_SOFT_XRC");
}

}  // namespace
}  // namespace millrace::test
