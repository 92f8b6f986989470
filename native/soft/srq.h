#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/spinlock.h"
#include "soft/chunk.h"
#include "soft/cq.h"
#include "soft/device.h"
#include "soft/layout.h"
#include "soft/xrcd.h"

namespace millrace::soft {

/** A shared receive queue, and all that its owner knows and nobody else needs to. */
struct Srq {
  ibv_srq srq = {};
  Context* context = nullptr;
  Cq* cq = nullptr;
  Xrcd* xrcd = nullptr;
  Block block;
  SrqShared* shared = nullptr;
  Word* words = nullptr;
  std::byte* wqes = nullptr;
  size_t stride = 0;
  uint32_t number = 0;
  uint32_t max_wr = 0;
  uint32_t max_sge = 0;

  base::Spinlock lock;
  // Needs lock. The free list is a circle: indices come back in the order in which they were
  // consumed, so that what is posted stays one run and a taker's hint is nearly always right.
  std::vector<uint64_t> wr_ids;
  std::vector<uint8_t> outstanding;  ///< posted and its completion not consumed
  std::vector<uint32_t> free_list;
  uint32_t free_head = 0;
  uint32_t free_count = 0;
  uint32_t limit = 0;  ///< 0: no event wanted

  static Srq& of(ibv_srq* handle) { return *reinterpret_cast<Srq*>(handle); }

  /**
   * Consumes the completion of a WQE: its state word must say that `taker` has it. Gives the WR id
   * and the index back to the free list; the word stays TAKEN until it is posted again (R1). False:
   * a lie (I9).
   */
  bool consume(uint32_t index, uint64_t taker, uint64_t* wr_id);
  /** POSTED was stored: fence, then wake every parked QP (R10). Any thread. */
  void wake_parked();
};

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attr);
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr);
int modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask);
int query_srq(ibv_srq* srq, ibv_srq_attr* attr);
int destroy_srq(ibv_srq* srq);
int get_srq_num(ibv_srq* srq, uint32_t* number);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);

}  // namespace millrace::soft
