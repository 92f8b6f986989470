#include "walk_side.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <string>

namespace millrace::test::walk {
namespace {

template <class T>
T* find(const std::map<uint32_t, T*>& in, uint32_t id) {
  const auto found = in.find(id);
  return found == in.end() ? nullptr : found->second;
}

/** Keeps what a verb made, or says why it made nothing. */
template <class T>
bool keep(std::map<uint32_t, T*>& in, uint32_t id, T* made, Reply* reply) {
  reply->error = made == nullptr ? errno : 0;
  if (made != nullptr) in[id] = made;
  return made != nullptr;
}

/** Forgets an object if the verb that ends it did. */
template <class T>
int drop(std::map<uint32_t, T*>& from, uint32_t id, int (*end)(T*)) {
  const int error = end(find(from, id));
  if (error == 0) from.erase(id);
  return error;
}

void elements(const Wr& wr, ibv_sge* out) {
  for (uint32_t i = 0; i < wr.count; ++i)
    out[i] = {wr.pieces[i].address, wr.pieces[i].length, wr.pieces[i].key};
}

template <class T>
std::string to_hex(const T& value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  std::string out;
  for (size_t i = 0; i < sizeof(T); ++i) {
    out += kDigits[bytes[i] >> 4];
    out += kDigits[bytes[i] & 15];
  }
  return out;
}

template <class T>
bool from_hex(const std::string& text, T* out) {
  if (text.size() != 2 * sizeof(T)) return false;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  auto* bytes = reinterpret_cast<uint8_t*>(out);
  for (size_t i = 0; i < sizeof(T); ++i)
    bytes[i] = static_cast<uint8_t>(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
  return true;
}

}  // namespace

void fill(uint8_t* at, uint64_t length, uint64_t seed) {
  uint32_t state = static_cast<uint32_t>(seed) | 1;
  for (uint64_t i = 0; i < length; ++i) {
    state = state * 1664525u + 1013904223u;
    at[i] = static_cast<uint8_t>(state >> 24);
  }
}

uint64_t hash(const uint8_t* at, uint64_t length, uint64_t seed) {
  for (uint64_t i = 0; i < length; ++i) seed = (seed ^ at[i]) * 0x100000001B3u;
  return seed;
}

LocalSide::LocalSide() : files_{SharedMemory(kMemoryBytes), SharedMemory(kMemoryBytes)} {
  const base::Result<ibv_context*> opened = verbs::open_device("soft");
  EXPECT_TRUE(opened.ok()) << opened.status().what << ": " << opened.status().detail;
  if (!opened.ok()) return;
  context_ = opened.value();
  fcntl(context_->async_fd, F_SETFL, O_NONBLOCK);
  engine_ = ibv_create_cq(context_, 1, nullptr, nullptr, 0);
  for (uint32_t i = 0; i < kMemories; ++i) {
    if (i % 2 == 0) {
      memories_[i] = reinterpret_cast<uint8_t*>(files_[i / 2].data());
    } else {
      privates_[i / 2].reset(new uint8_t[kMemoryBytes]());
      memories_[i] = privates_[i / 2].get();
    }
  }
}

LocalSide::~LocalSide() {
  // A walk that failed leaves objects behind; the context ends with the process then.
}

Reply LocalSide::run(const Action& action) {
  Reply reply = {};
  switch (action.verb) {
    case Verb::kAllocPd:
    case Verb::kRegMr:
    case Verb::kCreateCq:
    case Verb::kOpenXrcd:
    case Verb::kCreateSrq:
    case Verb::kCreateQp:
    case Verb::kOpenQp:
    case Verb::kCreateAh:
      create(action, &reply);
      break;
    case Verb::kDeallocPd:
    case Verb::kDeregMr:
    case Verb::kDestroyCq:
    case Verb::kCloseXrcd:
    case Verb::kDestroySrq:
    case Verb::kDestroyQp:
    case Verb::kDestroyAh:
    case Verb::kClose:
      destroy(action, &reply);
      break;
    case Verb::kResizeCq:
      reply.error = ibv_resize_cq(find(cqs_, action.id), static_cast<int>(action.number));
      break;
    case Verb::kLimitSrq: {
      ibv_srq_attr attr = {};
      attr.srq_limit = action.number;
      reply.error = ibv_modify_srq(find(srqs_, action.id), &attr, IBV_SRQ_LIMIT);
      break;
    }
    case Verb::kModifyQp:
      reply.error = modify_qp(action);
      break;
    case Verb::kPostRecv:
      reply.error = post_recv(action, &reply);
      break;
    case Verb::kPostSend:
      reply.error = post_send(action, &reply);
      break;
    case Verb::kPoll: {
      ibv_wc wc[kBatch];
      const int got = ibv_poll_cq(find(cqs_, action.id), kBatch, wc);
      if (got < 0) reply.error = EIO;
      for (int i = 0; i < got; ++i) {
        reply.done[i] = {
            wc[i].wr_id,    wc[i].status, wc[i].opcode, wc[i].byte_len,
            wc[i].imm_data, wc[i].qp_num, wc[i].src_qp, static_cast<uint32_t>(wc[i].wc_flags)};
      }
      reply.count = static_cast<uint32_t>(std::max(got, 0));
      break;
    }
    case Verb::kProgress: {
      ibv_wc wc;
      reply.error = ibv_poll_cq(engine_, 1, &wc);
      for (uint32_t i = 0; i < kMemories; ++i)
        reply.bases[i] = reinterpret_cast<uintptr_t>(memories_[i]);
      break;
    }
    case Verb::kFill:
      fill(reinterpret_cast<uint8_t*>(action.address), action.length, action.iova);
      break;
    case Verb::kRead:
      memcpy(reply.bytes, reinterpret_cast<const uint8_t*>(action.address), action.length);
      break;
    case Verb::kHash:
      reply.value = hash(memories_[1], kMemoryBytes, hash(memories_[0], kMemoryBytes));
      break;
    case Verb::kEvents:
      events(&reply);
      break;
  }
  return reply;
}

void LocalSide::create(const Action& action, Reply* reply) {
  switch (action.verb) {
    case Verb::kAllocPd:
      keep(pds_, action.id, ibv_alloc_pd(context_), reply);
      break;
    case Verb::kRegMr:
      if (keep(mrs_, action.id,
               ibv_reg_mr_iova(find(pds_, action.pd), reinterpret_cast<void*>(action.address),
                               action.length, action.iova, static_cast<int>(action.access)),
               reply)) {
        reply->number = mrs_[action.id]->rkey;
      }
      break;
    case Verb::kCreateCq:
      keep(cqs_, action.id,
           ibv_create_cq(context_, static_cast<int>(action.number), nullptr, nullptr, 0), reply);
      break;
    case Verb::kOpenXrcd: {
      const int fd = action.flag ? -1 : open_domain_file();
      ibv_xrcd_init_attr attr = {};
      attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
      attr.fd = fd;
      attr.oflags = O_CREAT;
      keep(xrcds_, action.id, ibv_open_xrcd(context_, &attr), reply);
      if (fd >= 0) close(fd);
      break;
    }
    case Verb::kCreateSrq: {
      ibv_srq_init_attr_ex attr = {};
      attr.attr.max_wr = action.recv_wr;
      attr.attr.max_sge = action.recv_sge;
      attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
      attr.srq_type = IBV_SRQT_BASIC;
      attr.pd = find(pds_, action.pd);
      if (action.xrcd != 0) {
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        attr.srq_type = IBV_SRQT_XRC;
        attr.xrcd = find(xrcds_, action.xrcd);
        attr.cq = find(cqs_, action.cq);
      }
      if (keep(srqs_, action.id, ibv_create_srq_ex(context_, &attr), reply) && action.xrcd != 0)
        reply->error = ibv_get_srq_num(srqs_[action.id], &reply->number);
      break;
    }
    case Verb::kCreateQp:
      reply->error = create_qp(action, reply);
      break;
    case Verb::kOpenQp: {
      ibv_qp_open_attr attr = {};
      attr.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
      attr.qp_num = action.number;
      attr.xrcd = find(xrcds_, action.xrcd);
      attr.qp_type = IBV_QPT_XRC_RECV;
      if (keep(qps_, action.id, ibv_open_qp(context_, &attr), reply))
        reply->number = qps_[action.id]->qp_num;
      break;
    }
    default: {
      ibv_ah_attr attr = {};
      attr.port_num = 1;
      attr.dlid = 1;
      attr.is_global = action.flag ? 1 : 0;
      ibv_query_gid(context_, 1, 0, &attr.grh.dgid);
      keep(ahs_, action.id, ibv_create_ah(find(pds_, action.pd), &attr), reply);
    }
  }
}

void LocalSide::destroy(const Action& action, Reply* reply) {
  switch (action.verb) {
    case Verb::kDeallocPd:
      reply->error = drop(pds_, action.id, ibv_dealloc_pd);
      break;
    case Verb::kDeregMr:
      reply->error = drop(mrs_, action.id, ibv_dereg_mr);
      break;
    case Verb::kDestroyCq:
      reply->error = drop(cqs_, action.id, ibv_destroy_cq);
      break;
    case Verb::kCloseXrcd:
      reply->error = drop(xrcds_, action.id, ibv_close_xrcd);
      break;
    case Verb::kDestroySrq:
      reply->error = drop(srqs_, action.id, ibv_destroy_srq);
      break;
    case Verb::kDestroyQp:
      reply->error = drop(qps_, action.id, ibv_destroy_qp);
      break;
    case Verb::kDestroyAh:
      reply->error = drop(ahs_, action.id, ibv_destroy_ah);
      break;
    default:
      reply->error = ibv_destroy_cq(engine_);
      if (reply->error == 0) reply->error = ibv_close_device(context_);
  }
}

int LocalSide::create_qp(const Action& action, Reply* reply) {
  ibv_qp_init_attr_ex attr = {};
  attr.qp_type = action.type;
  if (action.type == IBV_QPT_XRC_RECV) {
    attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    attr.xrcd = find(xrcds_, action.xrcd);
  } else {
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = find(pds_, action.pd);
    attr.send_cq = find(cqs_, action.cq);
    attr.cap.max_send_wr = action.send_wr;
    attr.cap.max_send_sge = action.send_sge;
    attr.cap.max_inline_data = action.inline_data;
    attr.sq_sig_all = action.flag ? 1 : 0;
    if (action.type != IBV_QPT_XRC_SEND) {
      attr.recv_cq = find(cqs_, action.recv_cq);
      attr.srq = find(srqs_, action.srq);
      if (action.srq == 0) {
        attr.cap.max_recv_wr = action.recv_wr;
        attr.cap.max_recv_sge = action.recv_sge;
      }
    }
  }
  if (keep(qps_, action.id, ibv_create_qp_ex(context_, &attr), reply))
    reply->number = qps_[action.id]->qp_num;
  return reply->error;
}

int LocalSide::modify_qp(const Action& action) {
  ibv_qp* qp = find(qps_, action.id);
  const ibv_qp_type type = action.type;
  ibv_qp_attr attr = {};
  attr.qp_state = action.state;
  int mask = IBV_QP_STATE;
  switch (action.state) {
    case IBV_QPS_INIT:
      mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
      mask |= type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
      attr.port_num = 1;
      attr.qkey = action.qkey;
      attr.qp_access_flags = action.access;
      break;
    case IBV_QPS_RTR:
      if (type == IBV_QPT_UD) break;
      mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
      if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
      attr.path_mtu = IBV_MTU_4096;
      attr.dest_qp_num = action.number;
      attr.ah_attr.port_num = 1;
      attr.ah_attr.dlid = 1;
      attr.max_dest_rd_atomic = static_cast<uint8_t>(action.dest_depth);
      attr.min_rnr_timer = 1;
      break;
    case IBV_QPS_RTS:
      if (action.flag) break;  // from SQD or SQE
      mask |= IBV_QP_SQ_PSN;
      if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
      if (type == IBV_QPT_XRC_RECV) mask |= IBV_QP_TIMEOUT;
      attr.timeout = 6;
      attr.retry_cnt = 1;
      attr.rnr_retry = static_cast<uint8_t>(action.rnr_retry);
      attr.max_rd_atomic = static_cast<uint8_t>(action.depth);
      break;
    case IBV_QPS_SQD:
      mask |= IBV_QP_EN_SQD_ASYNC_NOTIFY;
      attr.en_sqd_async_notify = action.flag ? 1 : 0;
      break;
    default:
      break;
  }
  return ibv_modify_qp(qp, &attr, mask);
}

int LocalSide::post_send(const Action& action, Reply* reply) {
  ibv_send_wr wrs[kWrs] = {};
  ibv_sge sges[kWrs][kPieces] = {};
  const ibv_qp_type type = find(qps_, action.id)->qp_type;
  for (uint32_t i = 0; i < action.count; ++i) {
    const Wr& from = action.wrs[i];
    ibv_send_wr& to = wrs[i];
    elements(from, sges[i]);
    to.wr_id = from.wr_id;
    to.next = i + 1 < action.count ? &wrs[i + 1] : nullptr;
    to.sg_list = sges[i];
    to.num_sge = static_cast<int>(from.count);
    to.opcode = from.opcode;
    to.send_flags = from.flags;
    to.imm_data = from.imm;
    if (type == IBV_QPT_UD) {
      to.wr.ud.ah = find(ahs_, from.ah);
      to.wr.ud.remote_qpn = from.qpn;
      to.wr.ud.remote_qkey = from.qkey;
    } else if (from.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
               from.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      to.wr.atomic = {from.remote, from.compare, from.swap, from.rkey};
    } else {
      to.wr.rdma = {from.remote, from.rkey};
    }
    if (type == IBV_QPT_XRC_SEND) to.qp_type.xrc.remote_srqn = from.srqn;
  }
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(find(qps_, action.id), wrs, &bad);
  reply->number = error == 0 ? action.count : static_cast<uint32_t>(bad - wrs);
  return error;
}

int LocalSide::post_recv(const Action& action, Reply* reply) {
  ibv_recv_wr wrs[kWrs] = {};
  ibv_sge sges[kWrs][kPieces] = {};
  for (uint32_t i = 0; i < action.count; ++i) {
    elements(action.wrs[i], sges[i]);
    wrs[i].wr_id = action.wrs[i].wr_id;
    wrs[i].next = i + 1 < action.count ? &wrs[i + 1] : nullptr;
    wrs[i].sg_list = sges[i];
    wrs[i].num_sge = static_cast<int>(action.wrs[i].count);
  }
  ibv_recv_wr* bad = nullptr;
  const int error = action.srq != 0 ? ibv_post_srq_recv(find(srqs_, action.srq), wrs, &bad)
                                    : ibv_post_recv(find(qps_, action.id), wrs, &bad);
  reply->number = error == 0 ? action.count : static_cast<uint32_t>(bad - wrs);
  return error;
}

void LocalSide::events(Reply* reply) {
  ibv_async_event event;
  while (reply->count < std::size(reply->events) && ibv_get_async_event(context_, &event) == 0) {
    auto& out = reply->events[reply->count++];
    out.type = static_cast<uint32_t>(event.event_type);
    if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) {
      for (const auto& [id, srq] : srqs_)
        if (srq == event.element.srq) out.number = id;
    } else if (event.event_type != IBV_EVENT_CQ_ERR) {
      out.number = event.element.qp->qp_num;
    }
    ibv_ack_async_event(&event);
  }
}

Reply RemoteSide::run(const Action& action) {
  child_.say(to_hex(action));
  Reply reply = {};
  if (!from_hex(child_.hear(), &reply)) reply.error = EPIPE;
  return reply;
}

}  // namespace millrace::test::walk

MILLRACE_CHILD(walk_side) {
  using namespace millrace::test::walk;
  LocalSide side;
  for (;;) {
    Action action;
    if (!from_hex(parent.hear(), &action)) return 1;
    parent.say(to_hex(side.run(action)));
    if (action.verb == Verb::kClose) return 0;
  }
}
