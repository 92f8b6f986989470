#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "soft/cq.h"
#include "soft/device.h"
#include "soft/receive_queue.h"
#include "soft/xrcd.h"

namespace millrace::soft {

/** A shared receive queue: an XRC SRQ, which has a number and a CQ, or a basic one. */
struct Srq {
  ibv_srq srq = {};
  Context* context = nullptr;
  ReceiveQueue queue;
  Cq* cq = nullptr;      ///< null: basic
  Xrcd* xrcd = nullptr;  ///< null: basic
  uint32_t number = 0;
  std::atomic<uint32_t> users{0};  ///< QPs that receive from it (basic only)

  static Srq& of(ibv_srq* handle) { return *reinterpret_cast<Srq*>(handle); }
  ibv_srq_type type() const { return cq != nullptr ? IBV_SRQT_XRC : IBV_SRQT_BASIC; }
};

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attr);
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr);
int modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask);
int query_srq(ibv_srq* srq, ibv_srq_attr* attr);
int destroy_srq(ibv_srq* srq);
int get_srq_num(ibv_srq* srq, uint32_t* number);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);

}  // namespace millrace::soft
