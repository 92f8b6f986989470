// Memory windows: ibv_alloc_mw(3), ibv_bind_mw(3), and what of ibv_post_send(3) is about them.
#include "soft_support.h"

namespace millrace::test {
namespace {

constexpr unsigned kWrite = IBV_ACCESS_REMOTE_WRITE;

inline int dealloc_mw(ibv_mw* mw) { return ibv_dealloc_mw(mw); }
using MwPtr = verbs::Owner<ibv_mw, dealloc_mw>;

/** An end that offers memory through windows, and one that uses it. */
struct Windows {
  explicit Windows(ibv_qp_type type = IBV_QPT_RC) : Windows(Connected::Options{.type = type}) {}
  explicit Windows(const Connected::Options& options)
      : owner(options), user(options), memory(4096) {
    connect();
    region = verbs::MrPtr(ibv_reg_mr(owner.pd.get(), memory.data(), 4096,
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
    EXPECT_TRUE(region);
  }
  void connect() {
    EXPECT_EQ(owner.connect(user.qpn()), 0);
    EXPECT_EQ(user.connect(owner.qpn()), 0);
  }
  /** After an error. */
  void reconnect() {
    for (Connected* end : {&owner, &user}) EXPECT_EQ(end->modify(IBV_QPS_RESET), 0);
    connect();
  }
  uint64_t address(uint32_t offset = 0) const {
    return reinterpret_cast<uintptr_t>(memory.data()) + offset;
  }
  ibv_mw_bind_info info(uint32_t offset, uint32_t bytes, unsigned access = kWrite) const {
    return {region.get(), address(offset), bytes, access};
  }
  static ibv_send_wr bind_wr(ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info& how) {
    ibv_send_wr wr = {};
    wr.wr_id = 42;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = how;
    return wr;
  }
  static ibv_send_wr invalidate_wr(uint32_t rkey) {
    ibv_send_wr wr = {};
    wr.opcode = IBV_WR_LOCAL_INV;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.invalidate_rkey = rkey;
    return wr;
  }
  /** Binds a type 2 window by a WR of the owner. */
  ibv_wc_status bind(ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info& how) {
    ibv_send_wr wr = bind_wr(mw, rkey, how);
    return owner.run(wr);
  }
  ibv_wc_status bind1(ibv_mw* mw, const ibv_mw_bind_info& how) {
    ibv_mw_bind bind = {};
    bind.wr_id = 43;
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_info = how;
    EXPECT_EQ(ibv_bind_mw(owner.qp.get(), mw, &bind), 0) << soft::last_error().detail;
    ibv_wc wc = {};
    EXPECT_TRUE(owner.poll_sent(&wc));
    EXPECT_EQ(wc.wr_id, 43u);
    return wc.status;
  }
  ibv_wc_status invalidate(uint32_t rkey) {
    ibv_send_wr wr = invalidate_wr(rkey);
    return owner.run(wr);
  }
  ibv_wc_status write(uint32_t rkey, uint64_t to, uint32_t bytes = 8) {
    ibv_send_wr wr = user.wr(IBV_WR_RDMA_WRITE, bytes);
    wr.wr.rdma.rkey = rkey;
    wr.wr.rdma.remote_addr = to;
    return user.run(wr);
  }
  ibv_wc_status read(uint32_t rkey, uint64_t from, uint32_t bytes = 8) {
    ibv_send_wr wr = user.wr(IBV_WR_RDMA_READ, bytes);
    wr.wr.rdma.rkey = rkey;
    wr.wr.rdma.remote_addr = from;
    return user.run(wr);
  }
  Connected owner, user;
  SharedMemory memory;
  verbs::MrPtr region;
};

TEST(SoftMw, AType2WindowGivesAccessToItsPartAlone) {
  Fabric fabric;
  Windows w;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  ASSERT_TRUE(mw);
  EXPECT_EQ(w.write(mw->rkey, w.address(1024)), IBV_WC_REM_ACCESS_ERR) << "not bound yet";
  w.reconnect();
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(w.bind(mw.get(), key, w.info(1024, 512)), IBV_WC_SUCCESS);
  EXPECT_EQ(mw->rkey, key);
  memcpy(w.user.buffer, "through!", 8);
  EXPECT_EQ(w.write(key, w.address(1024 + 504)), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(w.memory.data() + 1024 + 504, "through!", 8), 0);
  for (uint32_t beside : {1016u, 1024u + 505u, 0u}) {
    EXPECT_EQ(w.write(key, w.address(beside)), IBV_WC_REM_ACCESS_ERR) << beside;
    w.reconnect();
  }
  EXPECT_EQ(w.read(key, w.address(1024)), IBV_WC_REM_ACCESS_ERR) << "write was offered";
  w.reconnect();
  EXPECT_EQ(w.write(w.region->rkey, w.address(1024)), IBV_WC_REM_ACCESS_ERR)
      << "the region itself has no remote access";
}

TEST(SoftMw, BindingCompletesWithItsOwnOpcode) {
  Fabric fabric;
  Windows w;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  ibv_send_wr wr = Windows::bind_wr(mw.get(), ibv_inc_rkey(mw->rkey), w.info(0, 64));
  ASSERT_EQ(w.owner.send(wr), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(w.owner.poll_sent(&wc));
  EXPECT_EQ(wc.opcode, IBV_WC_BIND_MW);
  EXPECT_EQ(wc.wr_id, 42u);
  wr = Windows::invalidate_wr(mw->rkey);
  ASSERT_EQ(w.owner.send(wr), 0);
  ASSERT_TRUE(w.owner.poll_sent(&wc));
  EXPECT_EQ(wc.opcode, IBV_WC_LOCAL_INV);
}

// The user's translation of the key is cached: each change must be noticed at once.
TEST(SoftMw, InvalidatingLocallyWithdrawsIt) {
  Fabric fabric;
  Windows w;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  const uint32_t first = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(w.bind(mw.get(), first, w.info(0, 64)), IBV_WC_SUCCESS);
  ASSERT_EQ(w.write(first, w.address(0)), IBV_WC_SUCCESS);
  ASSERT_EQ(w.invalidate(first), IBV_WC_SUCCESS);
  EXPECT_EQ(w.write(first, w.address(0)), IBV_WC_REM_ACCESS_ERR);
  w.reconnect();
  const uint32_t second = ibv_inc_rkey(first);
  ASSERT_EQ(w.bind(mw.get(), second, w.info(2048, 64)), IBV_WC_SUCCESS);
  EXPECT_EQ(w.write(second, w.address(2048)), IBV_WC_SUCCESS);
  EXPECT_EQ(w.write(first, w.address(2048)), IBV_WC_REM_ACCESS_ERR) << "the old key";
  w.reconnect();
  // Bound elsewhere with the key that it had once: the cached translation is of another binding.
  ASSERT_EQ(w.invalidate(second), IBV_WC_SUCCESS);
  ASSERT_EQ(w.bind(mw.get(), first, w.info(3072, 64)), IBV_WC_SUCCESS);
  EXPECT_EQ(w.write(first, w.address(3072)), IBV_WC_SUCCESS);
  EXPECT_EQ(w.write(first, w.address(0)), IBV_WC_REM_ACCESS_ERR);
}

TEST(SoftMw, SendWithInvalidateWithdrawsItBeforeTheCompletion) {
  Fabric fabric;
  Windows w;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(w.bind(mw.get(), key, w.info(0, 64)), IBV_WC_SUCCESS);
  ASSERT_EQ(w.write(key, w.address(0)), IBV_WC_SUCCESS);
  ibv_send_wr wr = w.user.wr(IBV_WR_SEND_WITH_INV, 8);
  wr.invalidate_rkey = key;
  ASSERT_EQ(w.user.run(wr), IBV_WC_SUCCESS);
  ibv_wc wc = {};
  ASSERT_TRUE(w.owner.poll_received(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_NE(wc.wc_flags & IBV_WC_WITH_INV, 0u);
  EXPECT_EQ(wc.invalidated_rkey, key);
  EXPECT_EQ(wc.byte_len, 8u);
  // It can be bound anew, which a bound one can't.
  ASSERT_EQ(w.bind(mw.get(), ibv_inc_rkey(key), w.info(0, 64)), IBV_WC_SUCCESS);
  EXPECT_EQ(w.write(key, w.address(0)), IBV_WC_REM_ACCESS_ERR);
}

TEST(SoftMw, OnlyAWindowOfThatQpIsInvalidated) {
  Fabric fabric;
  Windows w;
  Windows other;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  MwPtr type1(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_1));
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(w.bind(mw.get(), key, w.info(0, 64)), IBV_WC_SUCCESS);
  ASSERT_EQ(w.bind1(type1.get(), w.info(128, 64)), IBV_WC_SUCCESS);
  // From a stranger, though its own QPs are in order: the PD is another.
  ibv_send_wr wr = other.user.wr(IBV_WR_SEND_WITH_INV, 8);
  wr.invalidate_rkey = key;
  EXPECT_EQ(other.user.run(wr), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(w.write(key, w.address(0)), IBV_WC_SUCCESS) << "it is as it was";
  // A region's key, a type 1 window's and one that is nobody's.
  for (uint32_t wrong : {w.region->rkey, type1->rkey, key ^ 0x55, 0u}) {
    wr = w.user.wr(IBV_WR_SEND_WITH_INV, 8);
    wr.invalidate_rkey = wrong;
    EXPECT_EQ(w.user.run(wr), IBV_WC_REM_ACCESS_ERR) << wrong;
    ibv_wc wc = {};
    ASSERT_TRUE(w.owner.poll_received(&wc));
    EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR) << "the receiver learns of it, too";
    w.reconnect();
    EXPECT_EQ(w.invalidate(wrong), IBV_WC_LOC_QP_OP_ERR);
    w.reconnect();
  }
  EXPECT_EQ(w.write(key, w.address(0)), IBV_WC_SUCCESS);
  EXPECT_EQ(w.write(type1->rkey, w.address(128)), IBV_WC_SUCCESS);
}

// Type 2B: a window belongs to the QP that it was bound on. Type 1: to the PD.
TEST(SoftMw, AnotherQpOfTheSamePd) {
  Fabric fabric;
  Windows w;
  MwPtr two(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  MwPtr one(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_1));
  const uint32_t key = ibv_inc_rkey(two->rkey);
  ASSERT_EQ(w.bind(two.get(), key, w.info(0, 64)), IBV_WC_SUCCESS);
  ASSERT_EQ(w.bind1(one.get(), w.info(128, 64)), IBV_WC_SUCCESS);
  // A second pair of QPs; the owner's is in the same PD.
  Connected::Options options;
  Connected visitor(options);
  ibv_qp_init_attr attr = {};
  attr.qp_type = IBV_QPT_RC;
  attr.send_cq = w.owner.send_cq.get();
  attr.recv_cq = w.owner.recv_cq.get();
  attr.cap = {16, 16, 1, 1, 0};
  const verbs::QpPtr first = std::move(w.owner.qp);
  w.owner.qp = verbs::QpPtr(ibv_create_qp(w.owner.pd.get(), &attr));
  ASSERT_TRUE(w.owner.qp);
  w.owner.options.post = false;
  ASSERT_EQ(w.owner.connect(visitor.qpn()), 0);
  ASSERT_EQ(visitor.connect(w.owner.qpn()), 0);
  ibv_send_wr wr = visitor.wr(IBV_WR_RDMA_WRITE, 8);
  wr.wr.rdma.rkey = one->rkey;
  wr.wr.rdma.remote_addr = w.address(128);
  EXPECT_EQ(visitor.run(wr), IBV_WC_SUCCESS);
  wr.wr.rdma.rkey = key;
  wr.wr.rdma.remote_addr = w.address(0);
  EXPECT_EQ(visitor.run(wr), IBV_WC_REM_ACCESS_ERR);
}

TEST(SoftMw, AType1WindowIsBoundByItsVerb) {
  Fabric fabric;
  Windows w;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_1));
  const uint32_t before = mw->rkey;
  ASSERT_EQ(w.bind1(mw.get(), w.info(0, 64)), IBV_WC_SUCCESS);
  const uint32_t key = mw->rkey;
  EXPECT_NE(key, before) << "binding changes the key";
  EXPECT_EQ(w.write(key, w.address(8)), IBV_WC_SUCCESS);
  // Bound again elsewhere, without invalidating.
  ASSERT_EQ(w.bind1(mw.get(), w.info(1024, 64, kWrite | IBV_ACCESS_REMOTE_READ)), IBV_WC_SUCCESS);
  EXPECT_NE(mw->rkey, key);
  EXPECT_EQ(w.write(mw->rkey, w.address(1024)), IBV_WC_SUCCESS);
  EXPECT_EQ(w.read(mw->rkey, w.address(1024)), IBV_WC_SUCCESS);
  EXPECT_EQ(w.write(key, w.address(8)), IBV_WC_REM_ACCESS_ERR);
  w.reconnect();
  const uint32_t last = mw->rkey;
  ASSERT_EQ(w.bind1(mw.get(), {w.region.get(), w.address(0), 0, 0}), IBV_WC_SUCCESS)
      << "a length of 0 unbinds";
  EXPECT_EQ(w.write(last, w.address(1024)), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(w.region.close(), 0) << "nothing is bound to it";
}

TEST(SoftMw, ZeroBasedWindowsCountFromTheirStart) {
  Fabric fabric;
  Windows w;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(w.bind(mw.get(), key, w.info(512, 64, kWrite | IBV_ACCESS_ZERO_BASED)), IBV_WC_SUCCESS);
  memcpy(w.user.buffer, "offset 8", 8);
  EXPECT_EQ(w.write(key, 8), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(w.memory.data() + 520, "offset 8", 8), 0);
  EXPECT_EQ(w.write(key, 60), IBV_WC_REM_ACCESS_ERR);
}

TEST(SoftMw, BindingsThatCanNotBe) {
  Fabric fabric;
  Windows w;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  verbs::PdPtr other_pd(ibv_alloc_pd(w.owner.context));
  MwPtr other(ibv_alloc_mw(other_pd.get(), IBV_MW_TYPE_2));
  verbs::MrPtr no_bind(ibv_reg_mr(w.owner.pd.get(), w.memory.data(), 4096, IBV_ACCESS_LOCAL_WRITE));
  verbs::MrPtr read_only(ibv_reg_mr(w.owner.pd.get(), w.memory.data(), 4096, IBV_ACCESS_MW_BIND));
  verbs::MrPtr foreign_pd(ibv_reg_mr(other_pd.get(), w.memory.data(), 4096,
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
  verbs::MrPtr zero_based(
      ibv_reg_mr(w.owner.pd.get(), w.memory.data(), 4096,
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED));
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  const auto refused = [&](ibv_mw* window, uint32_t rkey, const ibv_mw_bind_info& how,
                           const char* why) {
    EXPECT_EQ(w.bind(window, rkey, how), IBV_WC_MW_BIND_ERR) << why;
    EXPECT_EQ(w.owner.state(), IBV_QPS_ERR);
    w.reconnect();
  };
  const ibv_mw_bind_info good = w.info(0, 64);
  const auto with = [&](ibv_mr* mr) {
    ibv_mw_bind_info info = good;
    info.mr = mr;
    return info;
  };
  refused(mw.get(), mw->rkey, good, "the key that it has");
  refused(mw.get(), key + 256, good, "the key of another window");
  refused(other.get(), ibv_inc_rkey(other->rkey), good, "a window of another PD");
  refused(mw.get(), key, with(foreign_pd.get()), "a region of another PD");
  refused(mw.get(), key, with(no_bind.get()), "a region without MW_BIND");
  refused(mw.get(), key, with(read_only.get()), "remote write to a region without local write");
  refused(mw.get(), key, with(zero_based.get()), "a zero-based region");
  refused(mw.get(), key, w.info(4090, 64), "beyond the region");
  refused(mw.get(), key, w.info(0, 0), "nothing");
  ibv_mw_bind_info reads = with(read_only.get());
  reads.mw_access_flags = IBV_ACCESS_REMOTE_READ;
  ASSERT_EQ(w.bind(mw.get(), key, reads), IBV_WC_SUCCESS) << "reading is fine";
  refused(mw.get(), ibv_inc_rkey(key), good, "it is bound");
  EXPECT_EQ(w.read(key, w.address(0)), IBV_WC_SUCCESS) << "and still what it was";

  // What is no work request at all.
  ibv_send_wr wr = {};
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw.bind_info = good;
  EXPECT_EQ(w.owner.send(wr), EINVAL) << "no window";
  wr.bind_mw.mw = mw.get();
  wr.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_ON_DEMAND;
  EXPECT_EQ(w.owner.send(wr), EINVAL);
  ibv_mw_bind bind = {};
  bind.bind_info = good;
  EXPECT_EQ(ibv_bind_mw(w.owner.qp.get(), mw.get(), &bind), EINVAL) << "a type 2 window";
  EXPECT_EQ(ibv_alloc_mw(w.owner.pd.get(), static_cast<ibv_mw_type>(3)), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(mw.close(), 0);  // before the regions, one of which it is bound to
}

TEST(SoftMw, WhatIsBusyWhileAWindowIsBound) {
  Fabric fabric;
  Windows w;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(w.bind(mw.get(), key, w.info(0, 64)), IBV_WC_SUCCESS);
  EXPECT_EQ(w.region.close(), EBUSY);
  EXPECT_EQ(ibv_rereg_mr(w.region.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EBUSY);
  EXPECT_EQ(w.write(key, w.address(0)), IBV_WC_SUCCESS);
  ASSERT_EQ(mw.close(), 0) << "freeing unbinds";
  EXPECT_EQ(w.write(key, w.address(0)), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(w.region.close(), 0);
  MwPtr last(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_1));
  EXPECT_EQ(ibv_dealloc_pd(w.owner.pd.get()), EBUSY);
}

TEST(SoftMw, AWindowsKeyIsNoLocalKey) {
  Fabric fabric;
  Windows w;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(w.bind(mw.get(), key, w.info(0, 64)), IBV_WC_SUCCESS);
  ibv_send_wr wr = w.owner.wr(IBV_WR_SEND, 8);
  w.owner.sge = {w.address(0), 8, key};
  EXPECT_EQ(w.owner.run(wr), IBV_WC_LOC_PROT_ERR);
  w.owner.options.post = false;
  w.reconnect();
  ibv_sge sge = {w.address(0), 8, key};
  ibv_recv_wr receive = {};
  receive.sg_list = &sge;
  receive.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(w.owner.qp.get(), &receive, &bad), 0);
  wr = w.user.wr(IBV_WR_SEND, 8);
  EXPECT_EQ(w.user.run(wr), IBV_WC_REM_OP_ERR);
}

TEST(SoftMw, UnreliableConnectionsAndXrcBindToo) {
  Fabric fabric;
  {
    Windows w(IBV_QPT_UC);
    MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
    const uint32_t key = ibv_inc_rkey(mw->rkey);
    ASSERT_EQ(w.bind(mw.get(), key, w.info(0, 64)), IBV_WC_SUCCESS);
    memcpy(w.user.buffer, "silently", 8);
    EXPECT_EQ(w.write(key, w.address(0)), IBV_WC_SUCCESS);
    EXPECT_EQ(memcmp(w.memory.data(), "silently", 8), 0);
  }
  // XRC: bound on the initiator, used through the target, whose SRQ is in the PD.
  Endpoint end;
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  SharedMemory memory(4096);
  verbs::MrPtr region(
      ibv_reg_mr(end.pd.get(), memory.data(), 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
  MwPtr mw(ibv_alloc_mw(end.pd.get(), IBV_MW_TYPE_2));
  ibv_send_wr wr =
      Windows::bind_wr(mw.get(), ibv_inc_rkey(mw->rkey),
                       {region.get(), reinterpret_cast<uintptr_t>(memory.data()), 64, kWrite});
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(end.initiator.get(), &wr, &bad), 0);
  ibv_wc wc = {};
  ASSERT_TRUE(end.poll_sent(&wc));
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  strcpy(reinterpret_cast<char*>(end.buffer), "by xrc");
  ibv_sge sge = {reinterpret_cast<uintptr_t>(end.buffer), 7, end.send_mr->lkey};
  wr = {};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.rdma = {reinterpret_cast<uintptr_t>(memory.data()), mw->rkey};
  wr.qp_type.xrc.remote_srqn = end.srqn();
  ASSERT_EQ(ibv_post_send(end.initiator.get(), &wr, &bad), 0);
  ASSERT_TRUE(end.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_STREQ(reinterpret_cast<char*>(memory.data()), "by xrc");
}

/** Binds windows of its own and invalidates the parent's; a signal comes at a chosen step. */
MILLRACE_CHILD(window_victim) {
  const uint32_t parent_qpn = static_cast<uint32_t>(std::stoul(parent.arguments[0]));
  const uint32_t key = static_cast<uint32_t>(std::stoul(parent.arguments[1]));
  Windows own;  // for a window and a region of its own
  Connected::Options options;
  options.post = false;
  Connected end(options);
  EXPECT_EQ(end.connect(parent_qpn), 0);
  parent.say(std::to_string(end.qpn()));
  if (parent.hear() != "go") return 1;
  soft::signal_at_step(std::stoull(parent.arguments[2]), std::stoi(parent.arguments[3]));
  MwPtr mw(ibv_alloc_mw(own.owner.pd.get(), IBV_MW_TYPE_2));
  EXPECT_EQ(own.bind(mw.get(), ibv_inc_rkey(mw->rkey), own.info(0, 64)), IBV_WC_SUCCESS);
  ibv_send_wr wr = end.wr(IBV_WR_SEND_WITH_INV, 8);
  wr.invalidate_rkey = key;
  EXPECT_EQ(end.run(wr), IBV_WC_SUCCESS);
  EXPECT_EQ(own.invalidate(mw->rkey), IBV_WC_SUCCESS);
  parent.say("through");
  return 0;
}

// Killed or stopped between any two steps of binding and invalidating, it leaves a window that is
// either bound or not, and an owner who can go on (I7).
class SoftMwKill : public ::testing::TestWithParam<int> {};

TEST_P(SoftMwKill, BetweenAnyTwoSteps) {
  Fabric fabric;
  Windows w;
  MwPtr mw(ibv_alloc_mw(w.owner.pd.get(), IBV_MW_TYPE_2));
  uint32_t key = mw->rkey;
  bool through = false;
  int withdrawn = 0, kept = 0;
  for (uint64_t at = 1; !through; ++at) {
    ASSERT_LT(at, 500u);
    ASSERT_EQ(w.owner.modify(IBV_QPS_RESET), 0);
    Child victim("window_victim", {std::to_string(w.owner.qpn()), std::to_string(ibv_inc_rkey(key)),
                                   std::to_string(at), std::to_string(GetParam())});
    const uint32_t qpn = static_cast<uint32_t>(std::stoul(victim.hear()));
    ASSERT_EQ(w.owner.connect(qpn), 0);
    key = ibv_inc_rkey(key);
    ASSERT_EQ(w.bind(mw.get(), key, w.info(0, 64)), IBV_WC_SUCCESS) << at;
    victim.say("go");
    if (GetParam() == SIGSTOP) {
      through = !victim.wait_stopped();
    } else {
      const int code = victim.wait();
      through = code == 0;
      ASSERT_TRUE(through || code == 128 + SIGKILL) << code;
    }
    // A completion says that the window is out of use; without one it may be either.
    ibv_wc wc = {};
    const bool told = ibv_poll_cq(w.owner.recv_cq.get(), 1, &wc) == 1;
    if (told) {
      EXPECT_EQ(wc.invalidated_rkey, key);
      EXPECT_EQ(w.region.close(), 0) << "it is not bound";
      w.region = verbs::MrPtr(ibv_reg_mr(w.owner.pd.get(), w.memory.data(), 4096,
                                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
      ++withdrawn;
    } else {
      ++kept;
    }
    // Its owner can use it again in either case.
    EXPECT_EQ(w.invalidate(key), IBV_WC_SUCCESS) << at;
  }
  EXPECT_GT(withdrawn, 0);
  EXPECT_GT(kept, 0);
}

INSTANTIATE_TEST_SUITE_P(Signals, SoftMwKill, ::testing::Values(SIGKILL, SIGSTOP),
                         [](const auto& signal) {
                           return signal.param == SIGKILL ? "Kill" : "Stop";
                         });

}  // namespace
}  // namespace millrace::test
