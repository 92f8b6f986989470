#pragma once

// One endpoint of a random walk (soft_walk_test): it does what an Action says on a context of its
// own and says what came of it. Actions and replies are plain data, so the endpoint may also be in
// another process.

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "soft_support.h"

namespace millrace::test::walk {

inline constexpr uint32_t kMemories = 4;
/** 0 and 1: what is sent, written to from outside, fetched into; 0 is a mapped file, 1 is private.
 * 2 and 3, the same: slots to receive into, whose contents count once the completion is there. */
inline constexpr uint32_t kMemoryBytes = 32768;
inline constexpr uint32_t kPieces = 3;
inline constexpr uint32_t kWrs = 3;
inline constexpr uint32_t kBatch = 8;
/** In a wr_id: it is a receive's. */
inline constexpr uint64_t kReceive = uint64_t{1} << 63;

enum class Verb : uint8_t {
  kAllocPd,
  kDeallocPd,
  kRegMr,
  kDeregMr,
  kCreateCq,
  kResizeCq,
  kDestroyCq,
  kOpenXrcd,
  kCloseXrcd,
  kCreateSrq,
  kLimitSrq,
  kDestroySrq,
  kCreateQp,
  kOpenQp,
  kModifyQp,
  kDestroyQp,
  kCreateAh,
  kDestroyAh,
  kPostRecv,
  kPostSend,
  kPoll,
  kProgress,  ///< a poll of a CQ that nothing completes into
  kFill,
  kRead,
  kHash,
  kEvents,
  kClose,
};

struct Piece {
  uint64_t address;
  uint32_t length;
  uint32_t key;
};

/** A send or a receive. */
struct Wr {
  uint64_t wr_id;
  ibv_wr_opcode opcode;
  uint32_t flags;
  uint32_t imm;
  uint32_t count;
  Piece pieces[kPieces];
  uint64_t remote;
  uint64_t compare, swap;
  uint32_t rkey;
  uint32_t srqn;
  uint32_t ah, qpn, qkey;
};

/** Objects are named by numbers that the walk gives; 0 is none. */
struct Action {
  Verb verb;
  uint32_t side;
  uint32_t id;
  uint32_t pd, cq, recv_cq, srq, xrcd;
  ibv_qp_type type;
  ibv_qp_state state;
  uint32_t number;  ///< of a QP that is connected to or opened; else a count or a limit
  uint32_t access;
  uint32_t qkey;
  uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data;
  uint32_t rnr_retry, depth, dest_depth;
  bool flag;  ///< sq_sig_all, a global AH, a private domain, SQD's notification
  uint64_t address, length, iova;
  uint32_t count;
  Wr wrs[kWrs];
};

struct Done {
  uint64_t wr_id;
  ibv_wc_status status;
  ibv_wc_opcode opcode;
  uint32_t byte_len;
  uint32_t imm;
  uint32_t qp_num;
  uint32_t src_qp;
  uint32_t flags;
};

struct Reply {
  int32_t error;
  uint32_t number;  ///< a QP's or an XRC SRQ's, a key, how many WRs of a list were taken
  uint64_t value;
  uint64_t bases[kMemories];
  uint32_t count;
  union {
    Done done[kBatch];
    struct {
      uint32_t type, number;
    } events[16];  ///< of a QP by its number, of an SRQ by its id
    uint8_t bytes[512];
  };
};

/** Bytes that follow from a seed. */
void fill(uint8_t* at, uint64_t length, uint64_t seed);
/** FNV-1a. */
uint64_t hash(const uint8_t* at, uint64_t length, uint64_t seed = 0xCBF29CE484222325u);

class Side {
 public:
  virtual ~Side() = default;
  virtual Reply run(const Action& action) = 0;
};

/** On a context in this process. */
class LocalSide : public Side {
 public:
  LocalSide();
  ~LocalSide() override;
  /** kProgress also says where the memories are. */
  Reply run(const Action& action) override;

 private:
  void create(const Action& action, Reply* reply);
  void destroy(const Action& action, Reply* reply);
  int create_qp(const Action& action, Reply* reply);
  int modify_qp(const Action& action);
  int post_send(const Action& action, Reply* reply);
  int post_recv(const Action& action, Reply* reply);
  void events(Reply* reply);
  uint8_t* memory(uint32_t i) const { return memories_[i]; }

  ibv_context* context_ = nullptr;
  ibv_cq* engine_ = nullptr;
  SharedMemory files_[2];
  std::unique_ptr<uint8_t[]> privates_[2];
  uint8_t* memories_[kMemories] = {};
  std::map<uint32_t, ibv_pd*> pds_;
  std::map<uint32_t, ibv_mr*> mrs_;
  std::map<uint32_t, ibv_cq*> cqs_;
  std::map<uint32_t, ibv_xrcd*> xrcds_;
  std::map<uint32_t, ibv_srq*> srqs_;
  std::map<uint32_t, ibv_qp*> qps_;
  std::map<uint32_t, ibv_ah*> ahs_;
};

/** In a child of this program. */
class RemoteSide : public Side {
 public:
  RemoteSide() : child_("walk_side") {}
  Reply run(const Action& action) override;
  int wait() { return child_.wait(); }

 private:
  Child child_;
};

}  // namespace millrace::test::walk
