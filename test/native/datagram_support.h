#pragma once

// A QP that sends and receives datagrams or frames, with what it needs.

#include <endian.h>

#include <string>

#include "soft/port.h"
#include "soft_support.h"

namespace millrace::test {

/** An environment variable for one test. */
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;

 private:
  const char* name_;
};

constexpr uint32_t kQkey = 0x11111111;

struct DatagramEnd {
  struct Options {
    const char* device = "soft0";
    ibv_qp_type type = IBV_QPT_UD;
    uint32_t slots = 16;
    uint32_t slot_bytes = 4096 + 40;
    uint32_t qkey = kQkey;
    uint32_t create_flags = 0;
    bool foreign = false;  ///< slots in private memory
    bool srq = false;
    bool extended_cq = false;
    bool post = true;
    bool ready = true;
  };

  Options options;
  verbs::ContextPtr context;
  verbs::PdPtr pd;
  ibv_cq_ex* cq_ex = nullptr;
  verbs::CqPtr cq;  ///< receives
  verbs::CqPtr send_cq;
  std::unique_ptr<SharedMemory> memory;
  std::vector<std::byte> private_memory;
  std::vector<std::byte> send_memory;
  std::byte* slots = nullptr;
  verbs::MrPtr mr, send_mr;
  verbs::SrqPtr srq;
  verbs::QpPtr qp;

  DatagramEnd() : DatagramEnd(Options{}) {}
  explicit DatagramEnd(const Options& wanted) : options(wanted) {
    base::Result<ibv_context*> opened = verbs::open_device(options.device);
    EXPECT_TRUE(opened.ok()) << opened.status().detail;
    if (!opened.ok()) return;
    context = verbs::ContextPtr(opened.value());
    pd = verbs::PdPtr(ibv_alloc_pd(context.get()));
    if (options.extended_cq) {
      ibv_cq_init_attr_ex attr = {};
      attr.cqe = 256;
      attr.wc_flags = uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_FLOW_TAG;
      cq_ex = ibv_create_cq_ex(context.get(), &attr);
      EXPECT_NE(cq_ex, nullptr);
      cq = verbs::CqPtr(ibv_cq_ex_to_cq(cq_ex));
    } else {
      cq = verbs::CqPtr(ibv_create_cq(context.get(), 256, nullptr, nullptr, 0));
    }
    send_cq = verbs::CqPtr(ibv_create_cq(context.get(), 256, nullptr, nullptr, 0));
    const size_t bytes = size_t{options.slots} * options.slot_bytes;
    if (options.foreign) {
      private_memory.resize(bytes);
      slots = private_memory.data();
    } else {
      memory = std::make_unique<SharedMemory>(std::max<size_t>(bytes, 4096));
      slots = memory->data();
    }
    memset(slots, 0x5A, bytes);
    mr = verbs::MrPtr(ibv_reg_mr(pd.get(), slots, bytes, IBV_ACCESS_LOCAL_WRITE));
    send_memory.resize(16384);
    send_mr = verbs::MrPtr(ibv_reg_mr(pd.get(), send_memory.data(), send_memory.size(), 0));
    EXPECT_TRUE(mr && send_mr);
    if (options.srq) {
      ibv_srq_init_attr attr = {};
      attr.attr.max_wr = options.slots;
      attr.attr.max_sge = 2;
      srq = verbs::SrqPtr(ibv_create_srq(pd.get(), &attr));
      EXPECT_TRUE(srq) << soft::last_error().detail;
    }
    ibv_qp_init_attr_ex attr = {};
    attr.qp_type = options.type;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd.get();
    attr.send_cq = send_cq.get();
    attr.recv_cq = cq.get();
    attr.srq = srq.get();
    attr.cap.max_send_wr = 64;
    attr.cap.max_recv_wr = options.slots;
    attr.cap.max_send_sge = 4;
    attr.cap.max_recv_sge = 2;
    attr.cap.max_inline_data = 64;
    if (options.create_flags != 0) {
      attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
      attr.create_flags = options.create_flags;
    }
    qp = verbs::QpPtr(ibv_create_qp_ex(context.get(), &attr));
    EXPECT_TRUE(qp) << soft::last_error().detail;
    if (!qp) return;
    if (options.ready) {
      EXPECT_EQ(ready(), 0) << soft::last_error().detail;
      for (uint32_t i = 0; options.post && i < options.slots; ++i) EXPECT_EQ(post(i), 0);
    }
  }

  int to(ibv_qp_state state, int mask = 0, uint32_t qkey = kQkey) {
    ibv_qp_attr attr = {};
    attr.qp_state = state;
    attr.port_num = 1;
    attr.qkey = qkey;
    return ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | mask);
  }
  /** RESET to RTS. */
  int ready() {
    const bool ud = options.type == IBV_QPT_UD;
    const int init = ud ? IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY : IBV_QP_PORT;
    int error = to(IBV_QPS_INIT, init, options.qkey);
    if (error == 0) error = to(IBV_QPS_RTR);
    if (error == 0) error = to(IBV_QPS_RTS, ud ? IBV_QP_SQ_PSN : 0);
    return error;
  }

  int post(uint32_t index, uint32_t bytes = 0) {
    ibv_sge sge = {reinterpret_cast<uintptr_t>(slot(index)),
                   bytes != 0 ? bytes : options.slot_bytes, mr->lkey};
    ibv_recv_wr wr = {};
    wr.wr_id = index;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return srq ? ibv_post_srq_recv(srq.get(), &wr, &bad) : ibv_post_recv(qp.get(), &wr, &bad);
  }
  std::byte* slot(uint64_t index) const { return slots + index * options.slot_bytes; }
  const uint8_t* bytes(uint64_t index) const {
    return reinterpret_cast<const uint8_t*>(slot(index));
  }
  /** What a datagram in a slot says. */
  std::string text(const ibv_wc& wc, uint32_t room = 40) const {
    if (wc.byte_len < room) return "short";
    return std::string(reinterpret_cast<const char*>(slot(wc.wr_id)) + room, wc.byte_len - room);
  }

  uint32_t qpn() const { return qp->qp_num; }
  ibv_gid gid(int index = 0) const {
    ibv_gid gid = {};
    EXPECT_EQ(ibv_query_gid(context.get(), 1, index, &gid), 0);
    return gid;
  }
  uint16_t lid() const {
    ibv_port_attr port = {};
    EXPECT_EQ(ibv_query_port(context.get(), 1, &port), 0);
    return port.lid;
  }
  verbs::AhPtr ah_to_lid(uint16_t dlid, uint8_t sl = 0) {
    ibv_ah_attr attr = {};
    attr.port_num = 1;
    attr.dlid = dlid;
    attr.sl = sl;
    return verbs::AhPtr(ibv_create_ah(pd.get(), &attr));
  }
  verbs::AhPtr ah_to_gid(const ibv_gid& gid, uint8_t sgid_index = 0, uint16_t dlid = 0) {
    ibv_ah_attr attr = {};
    attr.port_num = 1;
    attr.dlid = dlid;
    attr.is_global = 1;
    attr.grh.dgid = gid;
    attr.grh.sgid_index = sgid_index;
    attr.grh.hop_limit = 64;
    attr.grh.traffic_class = 0x18;
    verbs::AhPtr ah(ibv_create_ah(pd.get(), &attr));
    EXPECT_TRUE(ah) << soft::last_error().detail;
    return ah;
  }

  int send(ibv_ah* ah, uint32_t to_qpn, const void* data, size_t bytes, uint32_t qkey = kQkey,
           int flags = IBV_SEND_SIGNALED, ibv_wr_opcode opcode = IBV_WR_SEND) {
    memcpy(send_memory.data(), data, bytes);
    ibv_sge sge = {reinterpret_cast<uintptr_t>(send_memory.data()), static_cast<uint32_t>(bytes),
                   send_mr->lkey};
    ibv_send_wr wr = {};
    wr.wr_id = 7;
    wr.opcode = opcode;
    wr.send_flags = static_cast<unsigned>(flags);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.imm_data = htobe32(0xABCD);
    if (options.type == IBV_QPT_UD) {
      wr.wr.ud.ah = ah;
      wr.wr.ud.remote_qpn = to_qpn;
      wr.wr.ud.remote_qkey = qkey;
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp.get(), &wr, &bad);
  }
  /** Sends and takes the completion of it. */
  ibv_wc_status send_and_wait(ibv_ah* ah, uint32_t to_qpn, const std::string& text,
                              uint32_t qkey = kQkey, int flags = 0) {
    EXPECT_EQ(send(ah, to_qpn, text.data(), text.size(), qkey, flags | IBV_SEND_SIGNALED), 0);
    ibv_wc wc = {};
    EXPECT_TRUE(Endpoint::poll(send_cq.get(), &wc));
    return wc.status;
  }
  /** A frame from a RAW_PACKET QP. */
  ibv_wc_status send_frame(const std::vector<uint8_t>& frame, int flags = 0) {
    EXPECT_EQ(send(nullptr, 0, frame.data(), frame.size(), 0, flags | IBV_SEND_SIGNALED), 0);
    ibv_wc wc = {};
    EXPECT_TRUE(Endpoint::poll(send_cq.get(), &wc));
    return wc.status;
  }
  bool receive(ibv_wc* wc) { return Endpoint::poll(cq.get(), wc); }
  /** Nothing is there. What was sent in this process has arrived when its send has completed. */
  bool nothing() {
    ibv_wc wc = {};
    return ibv_poll_cq(cq.get(), 1, &wc) == 0;
  }
};

/** A multicast GID of InfiniBand, or with `ipv4` that of an IPv4 group. */
inline ibv_gid group_gid(uint8_t last, bool ipv4 = false) {
  ibv_gid gid = {};
  if (ipv4) {
    gid.raw[10] = gid.raw[11] = 0xFF;
    gid.raw[12] = 239;
    gid.raw[13] = 1;
    gid.raw[14] = 1;
  } else {
    gid.raw[0] = 0xFF;
    gid.raw[1] = 0x12;
  }
  gid.raw[15] = last;
  return gid;
}

}  // namespace millrace::test
