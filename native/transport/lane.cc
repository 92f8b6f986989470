#include "transport/lane.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <cassert>

#include "base/clock.h"
#include "transport/errors.h"
#include "transport/port.h"

namespace millrace::transport {
namespace {

constexpr uint64_t kDrainNs = 2'000'000'000;
constexpr uint32_t kSgesPerWr = kMaxRuns + 1;

}  // namespace

base::Result<std::unique_ptr<Lane>> Lane::create(ibv_context* context, ibv_comp_channel* channel,
                                                 Arena* arena, uint32_t number, uint32_t depth) {
  std::unique_ptr<Lane> lane(new Lane());
  lane->number_ = number;
  lane->depth_ = depth;
  lane->arena_ = arena;
  lane->ring_.reset(new Posted[depth]);
  lane->wrs_.reset(new ibv_send_wr[kList]);
  lane->sges_.reset(new ibv_sge[size_t{kList} * kSgesPerWr]);
  auto headers = arena->take_headers();
  if (!headers.ok()) return headers.status();
  lane->headers_ = headers.value();
  errno = 0;
  lane->cq_ = verbs::CqPtr(ibv_create_cq(context, static_cast<int>(depth), nullptr, channel, 0));
  if (!lane->cq_) return verb_error(errno, "ibv_create_cq", "send CQ of a lane");
  return lane;
}

void Lane::attach(std::unique_ptr<Wire> wire, uint32_t max_runs, State state) {
  wire_ = std::move(wire);
  max_runs_ = max_runs;
  state_ = state;
  was_up_ = state == State::kUp;
}

Lane::~Lane() {
  if (wire_) {
    to_error(wire_->initiator());
    // A QP is not destroyed with work outstanding: the device may still read our memory.
    const uint64_t deadline = base::now_ns() + kDrainNs;
    struct : LaneSink {
      void completed(Posted&) override {}
    } nobody;
    while (accounted_ < (state_ == State::kDown ? limit_ : tail_) && base::now_ns() < deadline)
      (void)harvest(&nobody);
    quiesce();
    wire_.reset();
  }
  if (headers_.base != nullptr) arena_->give_headers(headers_);
}

void Lane::stage_frame(uint32_t srq_number) {
  const Posted& posted = next();
  ibv_send_wr& wr = wrs_[staged_];
  ibv_sge* const sges = &sges_[size_t{staged_} * kSgesPerWr];
  memset(&wr, 0, sizeof(wr));
  sges[0] = {reinterpret_cast<uint64_t>(header()), kFrameHeaderBytes, headers_.lkey};
  int count = 1;
  if (posted.bounce >= 0) {
    sges[count++] = {reinterpret_cast<uint64_t>(arena_->bounce(posted.bounce)), posted.body_bytes,
                     arena_->lkey()};
  }
  for (uint32_t i = 0; i < posted.run_count; ++i) {
    sges[count++] = {reinterpret_cast<uint64_t>(arena_->at(posted.runs[i].offset)),
                     posted.runs[i].bytes, arena_->lkey()};
  }
  wr.wr_id = tail_++;
  wr.sg_list = sges;
  wr.num_sge = count;
  wr.opcode = IBV_WR_SEND;
  wire_->address(wr, srq_number);
  if (++staged_ == kList) post();
}

void Lane::stage_write(uint32_t srq_number, const uint64_t* from, uint64_t remote_address,
                       uint32_t rkey) {
  const ibv_sge local = {reinterpret_cast<uint64_t>(from), sizeof(*from), arena_->lkey()};
  stage_one_sided(IBV_WR_RDMA_WRITE, srq_number, local, remote_address, rkey);
}

void Lane::stage_read(uint32_t srq_number, std::byte* to, uint32_t bytes, uint32_t lkey,
                      uint64_t remote_address, uint32_t rkey) {
  const ibv_sge local = {reinterpret_cast<uint64_t>(to), bytes, lkey};
  stage_one_sided(IBV_WR_RDMA_READ, srq_number, local, remote_address, rkey);
}

void Lane::stage_one_sided(ibv_wr_opcode opcode, uint32_t srq_number, const ibv_sge& local,
                           uint64_t remote_address, uint32_t rkey) {
  ibv_send_wr& wr = wrs_[staged_];
  ibv_sge* const sges = &sges_[size_t{staged_} * kSgesPerWr];
  memset(&wr, 0, sizeof(wr));
  sges[0] = local;
  wr.wr_id = tail_++;
  wr.sg_list = sges;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.wr.rdma.remote_addr = remote_address;
  wr.wr.rdma.rkey = rkey;
  wire_->address(wr, srq_number);
  if (++staged_ == kList) post();
}

void Lane::post() {
  if (staged_ == 0) return;
  const uint32_t count = staged_;
  staged_ = 0;
  if (!up()) {
    // Went down between staging and here: these were never given to the device.
    return;
  }
  for (uint32_t i = 0; i + 1 < count; ++i) wrs_[i].next = &wrs_[i + 1];
  wrs_[count - 1].next = nullptr;
  // Completions are in order, so the last one speaks for all; errors and flushes are always
  // reported.
  wrs_[count - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(wire_->initiator(), wrs_.get(), &bad);
  if (error == 0) return;
  // Not taken, or in part: everything outstanding is in doubt, and what the receivers state decides
  // (R14). There may be WRs that no completion speaks for (only the last one of the list was
  // signaled), so none is waited for.
  fail(IBV_WC_GENERAL_ERR);
  accounted_ = tail_;
}

void Lane::fail(ibv_wc_status status) {
  if (state_ == State::kDown) return;
  state_ = State::kDown;
  first_error_ = status;
  to_error(wire_->initiator());  // it usually is there already
}

bool Lane::harvest(LaneSink* sink) {
  bool progress = false;
  ibv_wc wcs[16];
  while (accounted_ < tail_) {
    const int count = ibv_poll_cq(cq_.get(), 16, wcs);
    if (count <= 0) break;
    progress = true;
    for (int i = 0; i < count; ++i) {
      const uint64_t position = wcs[i].wr_id;
      if (position < accounted_ || position >= tail_) continue;  // not ours: ignored
      const bool success = wcs[i].status == IBV_WC_SUCCESS;
      if (state_ == State::kUp) {
        // In order: whatever is before this one succeeded.
        const uint64_t until = success ? position + 1 : position;
        while (head_ < until) sink->completed(ring_[head_++ % depth_]);
      }
      accounted_ = position + 1;
      if (!success && state_ == State::kUp) {
        limit_ = tail_ - staged_;
        culprit_known_ = wcs[i].status != IBV_WC_WR_FLUSH_ERR;
        fail(wcs[i].status);
      }
    }
  }
  if (state_ == State::kDown && accounted_ >= limit_) {
    staged_ = 0;
    accounted_ = tail_;
  }
  return progress;
}

void Lane::forget_doubts() {
  assert(drained() || head_ == tail_);
  head_ = tail_;
  culprit_known_ = false;
  first_error_ = IBV_WC_SUCCESS;
}

base::Status Lane::rearm() {
  forget_doubts();
  base::Status status = wire_->connect();
  if (status.ok()) {
    state_ = State::kUp;
    was_up_ = true;
  }
  return status;
}

void Lane::await() {
  forget_doubts();
  state_ = State::kAsking;
}

void Lane::part() {
  parted_ = true;
  if (state_ == State::kUp) {
    limit_ = tail_ - staged_;
    fail(IBV_WC_WR_FLUSH_ERR);
  }
  state_ = State::kDown;
  // What was staged and never posted, or was taken for lost before, has no completion to come.
  if (accounted_ >= limit_) {
    staged_ = 0;
    accounted_ = tail_;
  }
}

}  // namespace millrace::transport
