#pragma once

// What a verbs device has to do, as simply as it can be said: one action at a time, on plain
// memory. soft_walk_test compares the software device with it after every action.
//
// It says what verbs promise, and where devices may differ, what native/soft/README.md chooses. Of
// the device's own ways it knows three: work requests that wait go on in the order in which they
// began to wait, when their side polls; a fault at a responder is noticed when its process polls;
// and what is taken from a queue that many send to may be any of what was posted.

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "walk_side.h"

namespace millrace::test::walk {

using Bytes = std::vector<uint8_t>;

struct Pd {
  uint32_t side;
  uint32_t users = 0;
};

struct Region {
  uint32_t side, pd;
  uint64_t address, length, iova;
  uint32_t access, key;
};

/** A completion that is to come. */
struct Expected {
  uint64_t wr_id = 0;
  uint32_t queue = 0;  ///< not 0: any receive of this queue that has none yet
  ibv_wc_status status = IBV_WC_SUCCESS;
  ibv_wc_opcode opcode = IBV_WC_SEND;
  std::optional<uint32_t> byte_len, imm;
  bool global = false;        ///< a datagram's GRH is there
  std::optional<Bytes> data;  ///< what lies in its slot, after `skip` bytes
  uint32_t skip = 0;
  /** Its receive has gone back to its queue (else that happens when it is polled). */
  bool consumed = true;
  uint32_t limited = 0;  ///< queue that it goes back to
};

struct Completions {
  uint32_t side;
  uint32_t users = 0;
  /** By QP, and for receives by who sent; flushed ones by nobody. In order within each. */
  std::map<std::tuple<uint32_t, uint32_t, bool>, std::deque<Expected>> streams;
  uint32_t pending() const;
  uint32_t rings = 0;  ///< receives that came since it was last empty
};

struct Receive {
  uint64_t wr_id;
  std::vector<Piece> pieces;
};

/** A receive queue. */
struct Queue {
  uint32_t side, pd;
  uint32_t max_wr, max_sge;
  /** One sender, so posted first is taken first. */
  bool in_order;
  std::deque<Receive> posted;  ///< not taken yet; which of them is, if not in order, is open
  uint32_t in_use = 0;         ///< posted, and not given back by a poll
  uint32_t limit = 0;
  uint64_t postings = 0;  ///< changes whenever it is worth another look
};

struct SharedQueue {
  uint32_t side, pd, xrcd, cq, number;
  uint32_t users = 0;
  Queue queue;
};

struct Domain {
  uint32_t side;
  bool is_private;
  uint32_t users = 0;
};

enum class Wait { kNothing, kWqe, kTarget };

struct QueuePair {
  uint32_t side, number;
  ibv_qp_type type;
  uint32_t pd = 0, send_cq = 0, recv_cq = 0, srq = 0;
  uint32_t domain = 0;  ///< of an XRC target: the key of its domain
  uint32_t max_send_wr = 0, max_send_sge = 0, max_inline = 0;
  bool all_signaled = false;
  uint32_t handles = 1;
  ibv_qp_state state = IBV_QPS_RESET;
  uint32_t dest = 0, access = 0, qkey = 0, rnr_retry = 7, depth = 0, dest_depth = 0;
  ibv_event_type fault = {};
  bool faulted = false, reported = false;  ///< reported: without an event of its own
  bool last_wqe_told = false;
  std::optional<Queue> own;
  struct Waiting {
    Wr wr;
    std::vector<Bytes> inline_data;
  };
  std::deque<Waiting> waiting;
  bool draining = false, notify = false;
  // Why the first of `waiting` waits:
  Wait wait = Wait::kNothing;
  bool doomed = false;  ///< it fails when its time is over
  ibv_wc_status doom = IBV_WC_SUCCESS;
  uint64_t seen_postings = 0;
  ibv_qp_state seen_state = IBV_QPS_RESET;
  bool owned() const { return type != IBV_QPT_XRC_RECV; }
  bool receives() const { return owned() && type != IBV_QPT_XRC_SEND; }
};

class Model {
 public:
  /** `one_process`: a fault is noticed by a poll of either side. */
  explicit Model(bool one_process);

  /** Does the action, and says how the reply is wrong; "" if it is right. */
  std::string apply(const Action& action, const Reply& reply);
  /** A poll of a side lets what waits there go on. True: something happened. */
  bool pass(uint32_t side);
  /** Some wait for a time limit. */
  bool doomed() const;
  /** Time has passed. */
  void expire();
  /** What is to be found in memory after the last poll. */
  struct Look {
    uint64_t address;
    Bytes data;
  };
  std::vector<Look> looks;

  uint64_t hash_of(uint32_t side) const;
  /** No receive that is posted, or whose completion was not polled, has it. */
  bool slot_is_free(uint32_t side, uint64_t address) const {
    return slots_.count({side, address}) == 0;
  }
  /** Some receive that is not done needs the region. */
  bool is_needed(const Region& one);
  uint8_t* memory(uint32_t side, uint64_t address);

  uint64_t bases[2][kMemories] = {};
  std::map<uint32_t, Pd> pds;
  std::map<uint32_t, Region> mrs;
  std::map<uint32_t, Completions> cqs;
  std::map<uint32_t, Domain> xrcds;
  std::map<uint32_t, SharedQueue> srqs;
  /** An XRC target has several handles; a QP that is owned has one. */
  struct Handle {
    uint32_t side, number, xrcd;
  };
  std::map<uint32_t, Handle> handles;
  std::map<uint32_t, QueuePair> qps;
  struct Address {
    uint32_t side, pd;
    bool global;
  };
  std::map<uint32_t, Address> ahs;

 private:
  struct Outcome {
    ibv_wc_status status = IBV_WC_SUCCESS;
    Wait wait = Wait::kNothing;
    std::optional<uint32_t> bytes = std::nullopt;
  };
  struct Target {
    uint8_t* at;
    uint32_t length;
  };

  std::string create(const Action& action, const Reply& reply);
  int end(const Action& action);
  int modify(const Action& action);
  int post_send(const Action& action, uint32_t* taken);
  int post_recv(const Action& action, uint32_t* taken);
  std::string poll(const Action& action, const Reply& reply);
  std::string events(const Action& action, const Reply& reply);

  const Region* region(uint32_t key) const;
  /** Where an element of this PD lies; null: the key, the bounds or the rights are wrong. */
  uint8_t* element(uint32_t pd, const Piece& piece, uint32_t access);
  bool gather(const QueuePair& qp, const QueuePair::Waiting& work, bool fetches, Bytes* data,
              std::vector<Target>* into, uint32_t* total);
  uint8_t* remote(const QueuePair& target, uint32_t pd, const Wr& wr, uint32_t need,
                  uint32_t length);

  Outcome run(QueuePair& qp, const QueuePair::Waiting& work);
  Outcome run_connected(QueuePair& qp, const Wr& wr, const Bytes& data,
                        const std::vector<Target>& into, uint32_t total);
  Outcome run_datagram(QueuePair& qp, const Wr& wr, const Bytes& data);
  Outcome one_sided(QueuePair& qp, QueuePair& target, uint32_t pd, const Wr& wr, const Bytes& data,
                    const std::vector<Target>& into, uint32_t total);
  Outcome atomic(QueuePair& qp, QueuePair& target, uint32_t pd, const Wr& wr,
                 const std::vector<Target>& into, uint32_t total);
  /** Takes a receive and puts the message there. False: there is none. */
  struct Arrival {
    ibv_wc_status sender = IBV_WC_SUCCESS, receiver = IBV_WC_SUCCESS;
  };
  std::optional<Arrival> receive(QueuePair& from, QueuePair& target, uint32_t queue_id,
                                 const Wr& wr, const Bytes& data, uint32_t room, bool header,
                                 std::optional<ibv_wc_status> failed);
  QueuePair* ready_target(const QueuePair& qp);
  Queue* queue(uint32_t id);
  static uint32_t own_queue(uint32_t number) { return number | 1u << 31; }
  uint32_t queue_of(const QueuePair& qp) const {
    return qp.srq != 0 ? qp.srq : own_queue(qp.number);
  }
  SharedQueue* find_srq(uint32_t number);
  bool changed_since(QueuePair& qp);

  bool start(QueuePair& qp, const QueuePair::Waiting& work);
  void complete(QueuePair& qp, const Wr& wr, const Outcome& out);
  void expect(uint32_t cq, uint32_t qp, uint32_t from, bool received, const Expected& one);
  void consume(Expected& one);
  void collect(uint32_t cq);
  void purge(QueuePair& qp);
  void set_waiting(QueuePair& qp, bool on);
  void pop(QueuePair& qp);
  void fail_responder(QueuePair& target, ibv_event_type type, bool reported);
  void notice(QueuePair& qp);
  void enter_error(QueuePair& qp);
  void fail_sends(QueuePair& qp);
  void flush_waiting(QueuePair& qp);
  void reset(QueuePair& qp);
  void forget_receive(uint64_t wr_id);
  void raise(uint32_t side, ibv_event_type type, uint32_t number);
  void drained(QueuePair& qp);
  bool run_waiting(QueuePair& qp);

  const bool one_process_;
  Bytes memories_[2][kMemories];
  std::vector<uint32_t> order_[2];  ///< QPs with work that waits, as they began
  std::multiset<std::pair<uint32_t, uint32_t>> events_[2];
  /** Receives until their completion is polled. */
  struct Open {
    uint32_t queue, side;
    uint64_t slot;  ///< 0: it has no element
    std::set<uint32_t> keys;
  };
  std::map<uint64_t, Open> open_;
  std::set<std::pair<uint32_t, uint64_t>> slots_;
  std::map<uint32_t, uint64_t> last_flush_;  ///< by queue: receives are flushed as posted
};

}  // namespace millrace::test::walk
