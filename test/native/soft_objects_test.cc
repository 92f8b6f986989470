// Creating, opening, modifying and destroying verbs objects: who is needed, who is busy, which
// masks are right.
#include <thread>

#include "soft_support.h"

namespace millrace::test {
namespace {

ibv_xrcd* open_domain(ibv_context* context, int fd, int flags) {
  ibv_xrcd_init_attr attr = {};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = fd;
  attr.oflags = flags;
  errno = 0;
  return ibv_open_xrcd(context, &attr);
}

ibv_qp* open_target(Endpoint& end, uint32_t number, ibv_qp_type type = IBV_QPT_XRC_RECV,
                    ibv_xrcd* xrcd = nullptr) {
  ibv_qp_open_attr attr = {};
  attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  attr.qp_num = number;
  attr.xrcd = xrcd != nullptr ? xrcd : end.xrcd.get();
  attr.qp_type = type;
  errno = 0;
  return ibv_open_qp(end.context.get(), &attr);
}

TEST(SoftObjects, WhatOthersDependOnIsBusy) {  // VERBS 2.2, 2.3
  Fabric fabric;
  {
    Endpoint end;
    EXPECT_EQ(ibv_dealloc_pd(end.pd.get()), EBUSY);
    EXPECT_EQ(ibv_close_xrcd(end.xrcd.get()), EBUSY);
    EXPECT_EQ(ibv_destroy_cq(end.cq.get()), EBUSY);
    EXPECT_EQ(ibv_destroy_cq(end.send_cq.get()), EBUSY);
    EXPECT_EQ(ibv_destroy_comp_channel(end.channel.get()), EBUSY);
    EXPECT_EQ(ibv_close_device(end.context.get()), EBUSY);
    EXPECT_EQ(soft::last_error().code, EBUSY);
    EXPECT_FALSE(soft::last_error().detail.empty());
  }
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftObjects, XrcDomains) {  // VERBS 2.1, 2.2
  Fabric fabric;
  base::Result<ibv_context*> opened = verbs::open_device("soft");
  ASSERT_TRUE(opened.ok());
  verbs::ContextPtr context(opened.value());
  const int fd = open_domain_file();
  EXPECT_EQ(open_domain(context.get(), fd, 0), nullptr);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(open_domain(context.get(), 9999, O_CREAT), nullptr);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(open_domain(context.get(), -1, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  verbs::XrcdPtr made(open_domain(context.get(), fd, O_CREAT | O_EXCL));
  ASSERT_TRUE(made);
  EXPECT_EQ(open_domain(context.get(), fd, O_CREAT | O_EXCL), nullptr);
  EXPECT_EQ(errno, EINVAL);
  verbs::XrcdPtr again(open_domain(context.get(), fd, 0));
  EXPECT_TRUE(again);
  close(fd);
  EXPECT_EQ(made.close(), 0);
  const int other = open_domain_file();
  verbs::XrcdPtr still(open_domain(context.get(), other, 0));
  EXPECT_TRUE(still) << "it goes with its last opener";
  EXPECT_EQ(again.close(), 0);
  EXPECT_EQ(still.close(), 0);
  EXPECT_EQ(open_domain(context.get(), other, 0), nullptr);
  EXPECT_EQ(errno, EAGAIN);
  verbs::XrcdPtr a(open_domain(context.get(), -1, O_CREAT)),
      b(open_domain(context.get(), -1, O_CREAT));
  EXPECT_TRUE(a && b);
  close(other);
}

MILLRACE_CHILD(domain_opener) {
  base::Result<ibv_context*> opened = verbs::open_device("soft");
  EXPECT_TRUE(opened.ok());
  const int fd = open_domain_file();
  static ibv_xrcd* volatile xrcd;  // reachable, so that no leak is reported
  xrcd = open_domain(opened.value(), fd, O_CREAT);
  parent.say(xrcd != nullptr ? "open" : "failed");
  parent.hear();
  return 0;  // without closing anything: the exit hook leaves
}

TEST(SoftObjects, TheDomainOfADeadProcessIsGone) {  // VERBS 2.2
  Fabric fabric;
  base::Result<ibv_context*> opened = verbs::open_device("soft");
  ASSERT_TRUE(opened.ok());
  verbs::ContextPtr context(opened.value());
  const int fd = open_domain_file();
  Child child("domain_opener");
  ASSERT_EQ(child.hear(), "open");
  EXPECT_EQ(open_domain(context.get(), fd, O_CREAT | O_EXCL), nullptr);
  EXPECT_EQ(errno, EINVAL);
  child.signal(SIGKILL);
  EXPECT_EQ(child.wait(), 128 + SIGKILL);
  verbs::XrcdPtr xrcd(open_domain(context.get(), fd, O_CREAT | O_EXCL));
  EXPECT_TRUE(xrcd);
  close(fd);
}

TEST(SoftObjects, AnXrcSrqNeedsEverything) {  // VERBS 2.3; its CQ is older, 2.14
  Fabric fabric;
  Endpoint end;
  ibv_srq_init_attr_ex good = {};
  good.attr.max_wr = 4;
  good.attr.max_sge = 1;
  good.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  good.srq_type = IBV_SRQT_XRC;
  good.pd = end.pd.get();
  good.xrcd = end.xrcd.get();
  good.cq = end.cq.get();
  for (uint32_t bit : {IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD}) {
    ibv_srq_init_attr_ex attr = good;
    attr.comp_mask &= ~bit;
    EXPECT_EQ(ibv_create_srq_ex(end.context.get(), &attr), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  for (const auto& [wr, sge] : {std::pair{0u, 1u}, {16385u, 1u}, {1u, 9u}}) {
    ibv_srq_init_attr_ex attr = good;
    attr.attr.max_wr = wr;
    attr.attr.max_sge = sge;
    EXPECT_EQ(ibv_create_srq_ex(end.context.get(), &attr), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  ibv_srq_init_attr_ex attr = good;
  verbs::SrqPtr srq(ibv_create_srq_ex(end.context.get(), &attr));
  EXPECT_TRUE(srq);
  // Numbers don't come back soon, although the memory does.
  uint32_t before = 0, after = 0;
  ASSERT_EQ(ibv_get_srq_num(srq.get(), &before), 0);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(srq.close(), 0);
    attr = good;
    srq = verbs::SrqPtr(ibv_create_srq_ex(end.context.get(), &attr));
    ASSERT_TRUE(srq);
    ASSERT_EQ(ibv_get_srq_num(srq.get(), &after), 0);
    EXPECT_GT(after, before);
    before = after;
  }
}

TEST(SoftObjects, QueuePairsNeedWhatTheyNeed) {  // VERBS 2.4, 2.5
  Fabric fabric;
  Endpoint end;
  ibv_qp_init_attr_ex attr = {};
  attr.qp_type = IBV_QPT_XRC_RECV;
  EXPECT_EQ(ibv_create_qp_ex(end.context.get(), &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  attr = {};
  attr.qp_type = IBV_QPT_XRC_SEND;
  attr.send_cq = end.send_cq.get();
  EXPECT_EQ(ibv_create_qp_ex(end.context.get(), &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  attr.comp_mask = IBV_QP_INIT_ATTR_PD;
  attr.pd = end.pd.get();
  attr.send_cq = nullptr;
  EXPECT_EQ(ibv_create_qp_ex(end.context.get(), &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  attr.send_cq = end.send_cq.get();
  attr.cap.max_send_sge = 31;
  EXPECT_EQ(ibv_create_qp_ex(end.context.get(), &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  // Known provider fault (VERBS 2.14): an SRQ given to an initiator. It is ignored.
  attr.cap.max_send_sge = 1;
  attr.srq = end.srq.get();
  verbs::QpPtr qp(ibv_create_qp_ex(end.context.get(), &attr));
  ASSERT_TRUE(qp);
  EXPECT_EQ(qp->srq, nullptr);
  ibv_qp_init_attr plain = {};
  plain.qp_type = IBV_QPT_DRIVER;
  plain.send_cq = plain.recv_cq = end.cq.get();
  EXPECT_EQ(ibv_create_qp(end.pd.get(), &plain), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST(SoftObjects, AttributeMasks) {  // VERBS 2.8, for XRC
  Fabric fabric;
  Endpoint end;
  const int init_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  const int rtr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  const int rts_mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  ibv_qp* qp = end.initiator.get();
  ibv_qp_attr attr = {};
  attr.port_num = 1;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = end.target_qpn();
  const auto to = [&](ibv_qp_state state, int mask) {
    attr.qp_state = state;
    return ibv_modify_qp(qp, &attr, mask);
  };
  // Each required bit is missed when it is not there, and the QP stays where it was.
  for (int bit : {IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS})
    EXPECT_EQ(to(IBV_QPS_INIT, init_mask & ~bit), EINVAL);
  EXPECT_EQ(to(IBV_QPS_RTR, rtr_mask), EINVAL) << "not from RESET";
  EXPECT_EQ(to(IBV_QPS_INIT, init_mask | IBV_QP_QKEY), EINVAL);
  EXPECT_EQ(to(IBV_QPS_ERR, IBV_QP_STATE), EINVAL) << "not from RESET";
  EXPECT_EQ(to(IBV_QPS_INIT, init_mask), 0);
  EXPECT_EQ(to(IBV_QPS_INIT, init_mask), 0) << "INIT to INIT";
  for (int bit : {IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN})
    EXPECT_EQ(to(IBV_QPS_RTR, rtr_mask & ~bit), EINVAL);
  // Known provider fault (VERBS 2.14): MAX_DEST_RD_ATOMIC and MIN_RNR_TIMER on an initiator are
  // stripped, whatever their values.
  attr.max_dest_rd_atomic = 255;
  attr.min_rnr_timer = 255;
  EXPECT_EQ(to(IBV_QPS_RTR, rtr_mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
  for (int bit : {IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_SQ_PSN,
                  IBV_QP_MAX_QP_RD_ATOMIC}) {
    EXPECT_EQ(to(IBV_QPS_RTS, rts_mask & ~bit), EINVAL);
  }
  attr.cur_qp_state = IBV_QPS_INIT;
  EXPECT_EQ(to(IBV_QPS_RTS, rts_mask | IBV_QP_CUR_STATE), EINVAL);
  attr.cur_qp_state = IBV_QPS_RTR;
  attr.rnr_retry = 8;
  EXPECT_EQ(to(IBV_QPS_RTS, rts_mask | IBV_QP_CUR_STATE), EINVAL) << "three bits";
  attr.rnr_retry = 7;
  attr.timeout = 14;
  EXPECT_EQ(to(IBV_QPS_RTS, rts_mask | IBV_QP_CUR_STATE), 0);
  ibv_qp_attr got = {};
  ibv_qp_init_attr init = {};
  ASSERT_EQ(ibv_query_qp(qp, &got, IBV_QP_STATE | IBV_QP_TIMEOUT, &init), 0);
  EXPECT_EQ(got.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(got.timeout, 14);
  EXPECT_EQ(got.dest_qp_num, end.target_qpn());
  EXPECT_EQ(init.qp_type, IBV_QPT_XRC_SEND);
  EXPECT_EQ(to(IBV_QPS_SQD, IBV_QP_STATE), 0);
  const uint32_t value = 1;
  ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
  ibv_wc wc = {};
  EXPECT_EQ(ibv_poll_cq(end.send_cq.get(), 1, &wc), 0) << "drained QPs start nothing";
  EXPECT_EQ(to(IBV_QPS_RTS, IBV_QP_STATE), 0);
  EXPECT_TRUE(end.poll_sent(&wc));

  // The target's own rows.
  verbs::QpPtr target;
  ibv_qp_init_attr_ex create = {};
  create.qp_type = IBV_QPT_XRC_RECV;
  create.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  create.xrcd = end.xrcd.get();
  target = verbs::QpPtr(ibv_create_qp_ex(end.context.get(), &create));
  qp = target.get();
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 12;
  EXPECT_EQ(to(IBV_QPS_INIT, init_mask), 0);
  EXPECT_EQ(to(IBV_QPS_RTR, rtr_mask), EINVAL);
  EXPECT_EQ(to(IBV_QPS_RTR, rtr_mask | IBV_QP_MAX_DEST_RD_ATOMIC), EINVAL);
  EXPECT_EQ(to(IBV_QPS_RTR, rtr_mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
  EXPECT_EQ(to(IBV_QPS_RTS, rts_mask), 0) << "RETRY_CNT and the like are stripped for a target";
}

MILLRACE_CHILD(target_creator) {
  Endpoint::Options options;
  options.send = false;
  Endpoint end(options);
  parent.say(std::to_string(end.target_qpn()));
  parent.hear();
  return 0;
}

TEST(SoftObjects, ATargetOutlivesItsKilledCreator) {
  Fabric fabric;
  {
    Endpoint end;
    Child creator("target_creator");
    const uint32_t number = static_cast<uint32_t>(std::stoul(creator.hear()));
    verbs::QpPtr handle(open_target(end, number));
    ASSERT_TRUE(handle) << soft::last_error().detail;
    EXPECT_EQ(handle->qp_num, number);
    creator.signal(SIGKILL);
    EXPECT_EQ(creator.wait(), 128 + SIGKILL);
    // A newcomer reaps the dead one; its hold goes, ours keeps the target (VERBS 2.7, 2.14).
    Child newcomer("domain_opener");
    EXPECT_EQ(newcomer.hear(), "open");
    ASSERT_EQ(end.connect(number), 0);
    const uint32_t value = 7;
    ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
    ibv_wc wc = {};
    ASSERT_TRUE(end.poll_sent(&wc));
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_TRUE(end.poll(&wc));
    EXPECT_EQ(wc.qp_num, number) << "completions carry the target's number (VERBS 2.11)";
    newcomer.say("end");
    newcomer.wait();
    // With the last handle it is gone.
    verbs::QpPtr second(open_target(end, number));
    ASSERT_TRUE(second);
    EXPECT_EQ(handle.close(), 0);
    verbs::QpPtr third(open_target(end, number));
    EXPECT_TRUE(third);
    EXPECT_EQ(second.close(), 0);
    EXPECT_EQ(third.close(), 0);
    EXPECT_EQ(open_target(end, number), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftObjects, OpeningWhatIsNotThere) {  // VERBS 2.6
  Fabric fabric;
  Endpoint end;
  for (uint32_t number : {0u, end.target_qpn() + 1, end.target_qpn() + 4096, end.initiator->qp_num,
                          end.target_qpn() | 0x1000000u}) {
    EXPECT_EQ(open_target(end, number), nullptr) << number;
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(open_target(end, end.target_qpn(), IBV_QPT_XRC_SEND), nullptr);
  EXPECT_EQ(errno, EINVAL);
  verbs::XrcdPtr other(open_domain(end.context.get(), -1, O_CREAT));
  EXPECT_EQ(open_target(end, end.target_qpn(), IBV_QPT_XRC_RECV, other.get()), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_qp_open_attr attr = {};
  attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_TYPE;
  EXPECT_EQ(ibv_open_qp(end.context.get(), &attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

/** Opens and closes the numbers it hears, as fast as it can; says how many it could open. */
MILLRACE_CHILD(target_opener) {
  Endpoint::Options options;
  options.receive = options.send = false;
  Endpoint end(options);
  parent.say("ready");
  for (std::string line = parent.hear(); !line.empty() && line != "end"; line = parent.hear()) {
    const uint32_t number = static_cast<uint32_t>(std::stoul(line));
    int opened = 0;
    for (int i = 0; i < 200; ++i) {
      verbs::QpPtr qp(open_target(end, number));
      if (!qp) continue;
      ++opened;
      ibv_qp_attr attr = {};
      ibv_qp_init_attr init = {};
      // Whoever has a handle has a QP: its state can be read, and it is the state it was brought
      // to.
      EXPECT_EQ(ibv_query_qp(qp.get(), &attr, IBV_QP_STATE, &init), 0);
      EXPECT_EQ(attr.qp_state, IBV_QPS_INIT);
    }
    parent.say(std::to_string(opened));
  }
  return 0;
}

TEST(SoftObjects, OpeningRacesWithTheLastClose) {
  Fabric fabric;
  {
    Endpoint::Options options;
    options.receive = options.send = false;
    Endpoint end(options);
    std::vector<std::unique_ptr<Child>> openers;
    for (int i = 0; i < 3; ++i) {
      openers.push_back(std::make_unique<Child>("target_opener"));
      ASSERT_EQ(openers.back()->hear(), "ready");
    }
    int opened = 0;
    for (int round = 0; round < 100; ++round) {
      ibv_qp_init_attr_ex create = {};
      create.qp_type = IBV_QPT_XRC_RECV;
      create.comp_mask = IBV_QP_INIT_ATTR_XRCD;
      create.xrcd = end.xrcd.get();
      verbs::QpPtr target(ibv_create_qp_ex(end.context.get(), &create));
      ASSERT_TRUE(target);
      ibv_qp_attr attr = {};
      attr.qp_state = IBV_QPS_INIT;
      attr.port_num = 1;
      ASSERT_EQ(ibv_modify_qp(target.get(), &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
                0);
      const uint32_t number = target->qp_num;
      for (auto& opener : openers) opener->say(std::to_string(number));
      for (int spin = 0; spin < round; ++spin) sched_yield();
      ASSERT_EQ(target.close(), 0);
      for (auto& opener : openers) opened += std::stoi(opener->hear());
      EXPECT_EQ(open_target(end, number), nullptr) << "nobody holds it";
    }
    EXPECT_GT(opened, 0);
    for (auto& opener : openers) opener->say("end");
    for (auto& opener : openers) EXPECT_EQ(opener->wait(), 0);
  }
  EXPECT_FALSE(fabric.exists());
}

TEST(SoftObjects, WhatOrdinaryToolsAsk) {
  Fabric fabric;
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(count, 1);
  EXPECT_STREQ(ibv_get_device_name(list[0]), "soft0");
  EXPECT_EQ(list[1], nullptr);
  verbs::ContextPtr context(ibv_open_device(list[0]));
  ibv_free_device_list(list);
  ASSERT_TRUE(context);
  ibv_device_attr device = {};
  ASSERT_EQ(ibv_query_device(context.get(), &device), 0);
  EXPECT_EQ(device.max_srq_sge, 8);
  EXPECT_EQ(device.max_sge, 30);
  EXPECT_EQ(device.max_srq_wr, 16384);
  EXPECT_EQ(device.max_cqe, 65536);
  EXPECT_TRUE(device.device_cap_flags & IBV_DEVICE_XRC);
  ibv_device_attr_ex extended = {};
  ASSERT_EQ(ibv_query_device_ex(context.get(), nullptr, &extended), 0);
  EXPECT_EQ(extended.orig_attr.max_qp, device.max_qp);
  ibv_port_attr port = {};
  ASSERT_EQ(ibv_query_port(context.get(), 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(ibv_query_port(context.get(), 2, &port), EINVAL);
  ibv_gid gid = {};
  ASSERT_EQ(ibv_query_gid(context.get(), 1, 0, &gid), 0);
  EXPECT_EQ(gid.raw[0], 0xFE);
  __be16 pkey = 0;
  ASSERT_EQ(ibv_query_pkey(context.get(), 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, 0xFFFF);
  EXPECT_STREQ(ibv_wc_status_str(IBV_WC_SUCCESS), "success");
  EXPECT_EQ(verbs::open_device("mlx5_0").status().code, ENODEV);
  EXPECT_NE(verbs::open_device("mlx5_0").status().detail.find("soft0"), std::string::npos);
}

TEST(SoftObjects, RegionsRunOutWithAReason) {
  Fabric fabric;
  base::Result<ibv_context*> opened = verbs::open_device("soft");
  ASSERT_TRUE(opened.ok());
  verbs::ContextPtr context(opened.value());
  verbs::PdPtr pd(ibv_alloc_pd(context.get()));
  std::vector<char> memory(64);
  EXPECT_EQ(ibv_reg_mr(pd.get(), memory.data(), 0, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_reg_mr(pd.get(), memory.data(), 64, IBV_ACCESS_REMOTE_WRITE), nullptr);
  EXPECT_EQ(errno, EINVAL);
  std::vector<verbs::MrPtr> regions;
  for (int i = 0; i < 4096; ++i) {
    regions.emplace_back(ibv_reg_mr(pd.get(), memory.data(), 64, IBV_ACCESS_LOCAL_WRITE));
    ASSERT_TRUE(regions.back()) << i;
  }
  EXPECT_EQ(ibv_reg_mr(pd.get(), memory.data(), 64, IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_NE(soft::last_error().detail.find("4096"), std::string::npos);
  const uint32_t key = regions[7]->lkey;
  ASSERT_EQ(regions[7].close(), 0);
  verbs::MrPtr again(ibv_reg_mr(pd.get(), memory.data(), 64, IBV_ACCESS_LOCAL_WRITE));
  ASSERT_TRUE(again);
  EXPECT_NE(again->lkey, key);
}

// A process that sends to others which come and go must not keep anything of them.
TEST(SoftObjects, ReceiversThatComeAndGoLeaveNoDescriptorsAndMappings) {
  Fabric fabric;
  Endpoint::Options options;
  options.receive = false;
  Endpoint keeper(options);
  const auto lines = [] {
    FILE* maps = fopen("/proc/self/maps", "re");
    int n = 0;
    for (int c; (c = fgetc(maps)) != EOF;) n += c == '\n';
    fclose(maps);
    return n;
  };
  const auto once = [&] {
    Endpoint each;
    ASSERT_EQ(keeper.connect(each.target_qpn()), 0);
    const uint32_t value = 1;
    ASSERT_EQ(keeper.send(each.srqn(), &value, sizeof(value)), 0);
    ibv_wc wc = {};
    ASSERT_TRUE(keeper.poll_sent(&wc));
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_TRUE(each.poll(&wc));
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RESET;
    ASSERT_EQ(ibv_modify_qp(keeper.initiator.get(), &attr, IBV_QP_STATE), 0);
  };
  for (int i = 0; i < 20; ++i) once();
  const size_t files = names_in("/proc/self/fd").size();
  const int mappings = lines();
  for (int i = 0; i < 300; ++i) once();
  EXPECT_EQ(names_in("/proc/self/fd").size(), files);
  EXPECT_NEAR(lines(), mappings, 3);  // the heap may have grown by one
  EXPECT_LE(fabric.files("r").size(), 2u) << "root, and the last ring at most";
}

}  // namespace
}  // namespace millrace::test
