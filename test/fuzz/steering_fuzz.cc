#include <fuzzer/FuzzedDataProvider.h>
#include <infiniband/verbs.h>
#include <string.h>

#include <cstdint>
#include <iterator>
#include <vector>

#include "../native/flow_builder.h"
#include "../native/frame_builder.h"
#include "shared_support.h"
#include "soft/flow.h"
#include "verbs/open.h"

// The shared tables that say where frames and multicast datagrams go (R32): flow rules, how they
// are spread, members of groups, and the counts of changes. Who sends reads records that others
// wrote. The QPs, rules and members are made once; the input says what the records become and what
// is sent. Nothing may crash, hang, or be read or written out of bounds. Without CAP_NET_RAW there
// are only the groups.

namespace {

using namespace millrace;
using namespace millrace::fuzz;
using namespace millrace::soft;

constexpr uint32_t kOps = 40;
constexpr uint32_t kSlots = 8;
constexpr uint32_t kSlotBytes = 512;
constexpr uint32_t kQkey = 0x11;
constexpr uint32_t kRules = 6;    ///< records of the table that are scribbled on
constexpr uint32_t kMembers = 4;  ///< of the table of groups
constexpr uint32_t kDestination = 0x0A000001;

void to_rts(ibv_qp* qp) {
  const bool ud = qp->qp_type == IBV_QPT_UD;
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    ibv_qp_attr attr = {};
    attr.qp_state = state;
    attr.port_num = 1;
    attr.qkey = kQkey;
    int mask = IBV_QP_STATE;
    if (state == IBV_QPS_INIT) mask |= IBV_QP_PORT | (ud ? IBV_QP_PKEY_INDEX | IBV_QP_QKEY : 0);
    if (state == IBV_QPS_RTS && ud) mask |= IBV_QP_SQ_PSN;
    must_be_zero(ibv_modify_qp(qp, &attr, mask), "bring a QP up");
  }
}

class Switch {
 public:
  Switch() {
    setenv("MILLRACE_SOFT_LINK", "ethernet", 1);
    auto opened = verbs::open_device("soft");
    if (!opened.ok()) die(opened.status().detail.c_str());
    context_ = opened.value();
    root_.open(fabric_.folder());
    pd_ = must(ibv_alloc_pd(context_), "allocate a PD");
    cq_ = must(ibv_create_cq(context_, 1024, nullptr, nullptr, 0), "create a CQ");
    mr_ = must(ibv_reg_mr(pd_, memory_, sizeof(memory_), int{IBV_ACCESS_LOCAL_WRITE}),
               "register memory");
    ud_ = create(IBV_QPT_UD);
    group_.raw[0] = 0xFF;
    group_.raw[1] = 0x1E;
    group_.raw[15] = 1;
    must_be_zero(ibv_attach_mcast(ud_, &group_, 0), "join a group");
    ibv_ah_attr to_group = {};
    to_group.port_num = 1;
    to_group.is_global = 1;
    to_group.grh.dgid = group_;
    to_group.grh.hop_limit = 1;
    ah_ = must(ibv_create_ah(pd_, &to_group), "create an AH");
    if (may_use_raw_frames()) {
      for (ibv_qp*& qp : raw_) qp = create(IBV_QPT_RAW_PACKET);
      make_spread();
      make_rules();
    }
    add(root_.header().next_flow);
    add(root_.header().groups_changed);
    add(root_.header().flows_changed);
    add(root_.header().flows_reserved);
    for (uint32_t i = 0; i < kMembers; ++i) add(root_.at(kGroupTable, i));
    for (int again = 0; again < 3; ++again) {
      add(root_.at(kSpreadTable, 0));
      for (uint32_t i = 0; i < kRules; ++i) add(root_.at(kFlowTable, i));
    }
    for (uint32_t i = 0; i < kPortRecords; ++i) add(root_.at(kPortTable, i));
    // What the device counts on to be new is not set back.
    for (size_t i = 4; i < parts_.size(); ++i) before_.add(parts_[i]);
    reserved_ = root_.header().flows_reserved.load();
  }

  void run(FuzzedDataProvider& input) {
    before_.restore();
    root_.header().flows_reserved.store(reserved_);
    tell();
    fill();
    for (uint32_t i = 0; i < kOps && input.remaining_bytes() > 0; ++i) step(input);
    while (ibv_flow* flow = extra_.empty() ? nullptr : extra_.back()) {
      must_be_zero(ibv_destroy_flow(flow), "destroy a rule");
      extra_.pop_back();
    }
    drain();
  }

 private:
  template <class T>
  void add(const T& what) {
    parts_.push_back(bytes_of(what));
  }
  ibv_qp* create(ibv_qp_type type) {
    ibv_qp_init_attr attr = {};
    attr.qp_type = type;
    attr.send_cq = attr.recv_cq = cq_;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = kSlots;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    ibv_qp* const qp = must(ibv_create_qp(pd_, &attr), "create a QP");
    to_rts(qp);
    return qp;
  }
  void make_spread() {
    for (ibv_wq*& wq : wqs_) {
      ibv_wq_init_attr attr = {};
      attr.wq_type = IBV_WQT_RQ;
      attr.max_wr = kSlots;
      attr.max_sge = 1;
      attr.pd = pd_;
      attr.cq = cq_;
      wq = must(ibv_create_wq(context_, &attr), "create a WQ");
      ibv_wq_attr ready = {};
      ready.attr_mask = IBV_WQ_ATTR_STATE;
      ready.wq_state = IBV_WQS_RDY;
      must_be_zero(ibv_modify_wq(wq, &ready), "bring a WQ up");
    }
    ibv_rwq_ind_table_init_attr table = {};
    table.log_ind_tbl_size = 1;
    table.ind_tbl = wqs_;
    static uint8_t key[kHashKey] = {0x6D, 0x5A, 0x56, 0xDA};
    ibv_qp_init_attr_ex attr = {};
    attr.qp_type = IBV_QPT_RAW_PACKET;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
    attr.pd = pd_;
    attr.rwq_ind_tbl = must(ibv_create_rwq_ind_table(context_, &table), "create a table");
    attr.rx_hash_conf.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
    attr.rx_hash_conf.rx_hash_key_len = sizeof(key);
    attr.rx_hash_conf.rx_hash_key = key;
    attr.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_SRC_PORT_UDP;
    spread_ = must(ibv_create_qp_ex(context_, &attr), "create a QP that spreads");
  }
  void make_rules() {
    test::FlowBuilder port, all, tagged, sniffer(IBV_FLOW_ATTR_SNIFFER);
    port.ipv4(0, kDestination).udp(5001);
    tagged.eth(test::kMacB).tag(7);
    must(ibv_create_flow(raw_[0], port.attr()), "create a rule");
    must(ibv_create_flow(raw_[1], port.attr()), "create a rule");
    must(ibv_create_flow(spread_, port.attr()), "create a rule");
    must(ibv_create_flow(raw_[0], tagged.attr()), "create a rule");
    must(ibv_create_flow(raw_[1], sniffer.attr()), "create a rule");
  }
  /** The records were written by others: who has a copy reads them again. */
  void tell() {
    root_.header().flows_changed.fetch_add(1);
    root_.header().groups_changed.fetch_add(1);
  }
  bool post(ibv_qp* qp, ibv_wq* wq) {
    ibv_sge sge = {reinterpret_cast<uintptr_t>(memory_), kSlotBytes, mr_->lkey};
    ibv_recv_wr wr = {}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    return (wq != nullptr ? ibv_post_wq_recv(wq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)) == 0;
  }
  void fill() {
    for (ibv_qp* qp : {ud_, raw_[0], raw_[1]}) {
      while (qp != nullptr && post(qp, nullptr)) {
      }
    }
    for (ibv_wq* wq : wqs_) {
      while (wq != nullptr && post(nullptr, wq)) {
      }
    }
  }
  void drain() {
    ibv_wc wc[16];
    while (ibv_poll_cq(cq_, 16, wc) > 0) {
    }
  }
  void send(ibv_qp* qp, const void* data, size_t bytes) {
    uint8_t* const out = memory_ + kSlotBytes;
    bytes = std::min<size_t>(bytes, kSlotBytes);
    memcpy(out, data, bytes);
    ibv_sge sge = {reinterpret_cast<uintptr_t>(out), static_cast<uint32_t>(bytes), mr_->lkey};
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.opcode = IBV_WR_SEND;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    if (qp == ud_) wr.wr.ud = {ah_, 0xFFFFFF, kQkey};
    must_be_zero(ibv_post_send(qp, &wr, &bad), "post a send");
  }
  void step(FuzzedDataProvider& input) {
    const int what = input.ConsumeIntegralInRange<int>(0, 11);
    switch (raw_[0] == nullptr && what >= 5 && what <= 10 ? 8 : what) {
      case 0:
      case 1:
      case 2:
      case 3:
        return scribble(input, parts_);
      case 4:
        return tell();
      case 5:
      case 6: {
        const auto frame = test::udp_frame(input.ConsumeIntegral<uint8_t>(), kDestination,
                                           input.ConsumeIntegral<uint8_t>(),
                                           input.ConsumeBool() ? 5001u : 5002u, "x");
        tell();
        return send(raw_[0], frame.data().data(), frame.data().size());
      }
      case 7: {
        std::vector<uint8_t> frame = input.ConsumeBytes<uint8_t>(80);
        frame.resize(std::max<size_t>(frame.size(), 14));
        return send(raw_[1], frame.data(), frame.size());
      }
      case 8:
        tell();
        return send(ud_, "datagram", 8);
      case 9: {
        // A place for it is looked for in the table.
        test::FlowBuilder rule;
        rule.udp(input.ConsumeIntegral<uint16_t>());
        if (ibv_flow* flow = ibv_create_flow(raw_[0], rule.attr())) extra_.push_back(flow);
        return;
      }
      case 10:
        if (extra_.empty()) return;
        must_be_zero(ibv_destroy_flow(extra_.back()), "destroy a rule");
        return extra_.pop_back();
      default:
        drain();
        fill();
    }
  }

  OwnFabric fabric_;
  RootView root_;
  ibv_context* context_;
  ibv_pd* pd_;
  ibv_cq* cq_;
  ibv_mr* mr_;
  ibv_ah* ah_;
  ibv_gid group_ = {};
  ibv_qp *ud_, *raw_[2] = {}, *spread_ = nullptr;
  ibv_wq* wqs_[2] = {};
  std::vector<ibv_flow*> extra_;
  std::vector<Bytes> parts_;
  Snapshot before_;
  uint64_t reserved_ = 0;
  alignas(64) uint8_t memory_[2 * kSlotBytes] = {};
};

Switch* fabric = nullptr;

}  // namespace

/** What was freed is kept for some runs and not for hundreds, and a look for leaks after each run
 * would find what the open device keeps. */
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=8:detect_leaks=0"; }

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  fabric = new Switch();
  atexit([] { delete fabric; });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  fabric->run(input);
  return 0;
}
