// Random walks over verbs: two endpoints, in one process or in two, do what a seeded generator says
// (mostly what programs do, now and then what they must not), and after every step the device is
// where a simple model is: errors, completions with their order, memory, events, dependants. At the
// end everything is destroyed in any order, and nothing is left.
//
// A walk that fails prints its seed; MILLRACE_WALK_SEED=<seed> walks that one alone, and prints
// every step. MILLRACE_WALK_SECONDS says how long each of the tests walks (3).

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "soft_support.h"
#include "walk_model.h"

namespace {

using namespace millrace;
using namespace millrace::test;
using namespace millrace::test::walk;

constexpr uint32_t kArea = kMemoryBytes / 3 / 8 * 8;
constexpr uint32_t kSlotBytes = 1024;
/** Longer than any time limit that the walk gives. */
constexpr uint64_t kTimeLimitNs = 400'000;
enum Area : uint32_t { kSent, kRemote, kFetched };

class Walk {
 public:
  Walk(uint64_t seed, bool one_process, bool loud) : rng_(seed), model_(one_process), loud_(loud) {
    sides_[0] = std::make_unique<LocalSide>();
    if (one_process) {
      sides_[1] = std::make_unique<LocalSide>();
    } else {
      auto remote = std::make_unique<RemoteSide>();
      remote_ = remote.get();
      sides_[1] = std::move(remote);
    }
  }

  bool run(uint32_t steps) {
    for (uint32_t side = 0; side < 2; ++side) {
      progress(side);
      for (uint32_t i = 0; i < 2; ++i) furnish(side);
    }
    for (uint32_t i = 0; i < steps && ok(); ++i) {
      step();
      if (i % 16 == 0) look_at_memory();
    }
    if (ok()) finish();
    return ok();
  }

  bool ok() const { return problem_.empty(); }
  std::string report() const {
    std::string out = problem_;
    const size_t from = trace_.size() > 40 ? trace_.size() - 40 : 0;
    for (size_t i = from; i < trace_.size(); ++i) out += "\n  " + trace_[i];
    return out;
  }
  uint64_t actions() const { return actions_; }

 private:
  // Doing ---------------------------------------------------------------------------------------

  /** Does it on both sides of the comparison. */
  Reply act(const Action& action) {
    if (!ok()) return {};
    ++actions_;
    const Reply reply = sides_[action.side]->run(action);
    note(action, reply);
    const std::string wrong = model_.apply(action, reply);
    if (!wrong.empty()) problem_ = "step " + std::to_string(actions_) + ": " + wrong;
    return reply;
  }

  Reply act_and_settle(const Action& action) {
    const Reply reply = act(action);
    settle();
    return reply;
  }

  bool progress(uint32_t side) {
    Action action = {};
    action.verb = Verb::kProgress;
    action.side = side;
    act(action);
    return ok() && model_.pass(side);
  }

  /** Until nothing moves any more, also not by the passing of time. */
  void settle() {
    for (int round = 0; ok(); ++round) {
      bool moved = false;
      for (uint32_t side = 0; side < 2; ++side) moved |= progress(side);
      if (moved || round == 0) continue;
      if (!model_.doomed()) break;
      const uint64_t from = base::now_ns();
      while (base::now_ns() < from + kTimeLimitNs) sched_yield();
      for (uint32_t side = 0; side < 2; ++side) {
        Action action = {};
        action.verb = Verb::kProgress;
        action.side = side;
        act(action);
      }
      model_.expire();
    }
    for (uint32_t side = 0; side < 2; ++side) {
      Action action = {};
      action.verb = Verb::kEvents;
      action.side = side;
      act(action);
    }
    // Rings have at least 64 entries, and nobody is to wait for room in one.
    for (const auto& [id, cq] : model_.cqs)
      if (cq.rings > 30 || cq.pending() > 150) empty(id);
  }

  Reply poll(uint32_t id) {
    Action action = {};
    action.verb = Verb::kPoll;
    action.side = model_.cqs.at(id).side;
    action.id = id;
    const Reply reply = act(action);
    for (const Model::Look& look : model_.looks) {
      for (size_t done = 0; done < look.data.size() && ok();) {
        Action read = {};
        read.verb = Verb::kRead;
        read.side = action.side;
        read.address = look.address + done;
        read.length = std::min(look.data.size() - done, sizeof(Reply::bytes));
        const Reply bytes = act(read);
        if (memcmp(bytes.bytes, look.data.data() + done, read.length) != 0)
          problem_ = "a slot does not hold what was sent";
        done += read.length;
      }
    }
    model_.looks.clear();
    return reply;
  }

  void empty(uint32_t id) {
    while (ok() && poll(id).count == kBatch) {
    }
  }

  void look_at_memory() {
    for (uint32_t side = 0; side < 2; ++side) {
      Action action = {};
      action.verb = Verb::kHash;
      action.side = side;
      act(action);
    }
  }

  void note(const Action& a, const Reply& reply) {
    if (a.verb == Verb::kProgress || a.verb == Verb::kRead ||
        (a.verb == Verb::kEvents && reply.count == 0))
      return;
    static constexpr const char* kNames[] = {
        "alloc_pd",   "dealloc_pd", "reg_mr",     "dereg_mr",   "create_cq", "resize_cq",
        "destroy_cq", "open_xrcd",  "close_xrcd", "create_srq", "limit_srq", "destroy_srq",
        "create_qp",  "open_qp",    "modify_qp",  "destroy_qp", "create_ah", "destroy_ah",
        "post_recv",  "post_send",  "poll",       "progress",   "fill",      "read",
        "hash",       "events",     "close"};
    std::string line = base::format(
        "%llu side %u %s %u (pd %u cq %u/%u srq %u xrcd %u type %d state %d number %x) = %d, %x, "
        "%u",
        static_cast<unsigned long long>(actions_), a.side, kNames[static_cast<uint32_t>(a.verb)],
        a.id, a.pd, a.cq, a.recv_cq, a.srq, a.xrcd, a.type, a.state, a.number, reply.error,
        reply.number, reply.count);
    if (a.verb == Verb::kPostSend || a.verb == Verb::kPostRecv) {
      for (uint32_t i = 0; i < a.count; ++i) {
        const Wr& wr = a.wrs[i];
        line += base::format(" [%llx op %d flags %x", static_cast<unsigned long long>(wr.wr_id),
                             wr.opcode, wr.flags);
        for (uint32_t p = 0; p < wr.count; ++p)
          line += base::format(" %llx+%u:%x", static_cast<unsigned long long>(wr.pieces[p].address),
                               wr.pieces[p].length, wr.pieces[p].key);
        line += base::format(" remote %llx:%x srq %x qp %x]",
                             static_cast<unsigned long long>(wr.remote), wr.rkey, wr.srqn, wr.qpn);
      }
    }
    if (a.verb == Verb::kPoll) {
      for (uint32_t i = 0; i < reply.count; ++i)
        line += base::format(" [%llx status %d qp %x]",
                             static_cast<unsigned long long>(reply.done[i].wr_id),
                             reply.done[i].status, reply.done[i].qp_num);
    }
    if (loud_) fprintf(stderr, "%s\n", line.c_str());
    trace_.push_back(std::move(line));
    if (trace_.size() > 200) trace_.erase(trace_.begin(), trace_.begin() + 100);
  }

  // Choosing ------------------------------------------------------------------------------------

  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(rng_.below(bound)); }
  bool chance(uint32_t percent) { return below(100) < percent; }
  uint32_t new_id() { return ++ids_; }

  /** The id of one of the objects of a side that `fits`; 0: there is none. */
  template <class Objects, class Fits>
  uint32_t any(const Objects& objects, const Fits& fits) {
    std::vector<uint32_t> ids;
    for (const auto& [id, object] : objects)
      if (fits(object)) ids.push_back(id);
    return ids.empty() ? 0 : ids[below(static_cast<uint32_t>(ids.size()))];
  }
  template <class Objects>
  uint32_t any_of(const Objects& objects, uint32_t side) {
    return any(objects, [side](const auto& one) { return one.side == side; });
  }
  template <class Objects>
  uint32_t count(const Objects& objects, uint32_t side) {
    uint32_t sum = 0;
    for (const auto& [id, object] : objects) sum += object.side == side ? 1 : 0;
    return sum;
  }
  /** A handle to a QP that `fits`. */
  template <class Fits>
  uint32_t any_qp(const Fits& fits) {
    return any(model_.handles,
               [&](const Model::Handle& handle) { return fits(model_.qps.at(handle.number)); });
  }
  QueuePair& qp_of(uint32_t handle) { return model_.qps.at(model_.handles.at(handle).number); }

  Action action(Verb verb, uint32_t side, uint32_t id = 0) {
    Action out = {};
    out.verb = verb;
    out.side = side;
    out.id = id != 0 ? id : new_id();
    return out;
  }

  uint32_t length_for(uint32_t most) {
    switch (below(6)) {
      case 0:
        return 0;
      case 1:
        return 8;
      case 2:
      case 3:
        return 1 + below(std::min(most, 64u));
      default:
        return 1 + below(most);
    }
  }

  /** Memory of a PD's side for one element, mostly one that will do. */
  Piece piece(uint32_t pd, Area area, uint32_t length, uint32_t need, uint32_t align = 1) {
    const uint32_t side = model_.pds.count(pd) != 0 ? model_.pds.at(pd).side : 0;
    const bool wrong = chance(3);
    const uint64_t start = model_.bases[side][below(2)] + area * kArea;
    Piece out = {start, length, 0};
    const uint32_t id = any(model_.mrs, [&](const Region& mr) {
      if (mr.side != side) return false;
      const uint64_t from = std::max(mr.address, start);
      const uint64_t to = std::min(mr.address + mr.length, start + kArea);
      if (from + length + 16 > to) return false;
      return wrong || (mr.pd == pd && (mr.access & need) == need);
    });
    if (id == 0) return out;
    const Region& mr = model_.mrs.at(id);
    const uint64_t from = std::max(mr.address, start);
    const uint64_t to = std::min(mr.address + mr.length, start + kArea);
    uint64_t at = from + below(static_cast<uint32_t>(to - from - length - 7));
    at = at / align * align;
    if (at < from) at += align;
    out.address = mr.iova + (at - mr.address);
    out.key = mr.key;
    if (chance(1)) {
      out.address = mr.iova + mr.length - length / 2;  // beyond its end
      if (length < 2) out.address += 2;
    }
    if (chance(1)) out.key = dead_key_;
    return out;
  }

  /** An element to receive into, at this place; mostly with a key that will do. */
  Piece piece_at(uint32_t pd, uint32_t side, uint64_t address, uint32_t length) {
    const bool wrong = chance(3);
    const uint32_t id = any(model_.mrs, [&](const Region& mr) {
      if (mr.side != side || address < mr.address || address + length > mr.address + mr.length)
        return false;
      return wrong || (mr.pd == pd && (mr.access & IBV_ACCESS_LOCAL_WRITE) != 0);
    });
    if (id == 0) return {address, length, dead_key_};
    const Region& mr = model_.mrs.at(id);
    return {mr.iova + (address - mr.address), length, chance(1) ? dead_key_ : mr.key};
  }

  // Steps ---------------------------------------------------------------------------------------

  uint32_t reg_mr(uint32_t side, uint32_t pd, uint32_t memory, bool whole) {
    static constexpr uint32_t kSome[] = {
        0, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
    Action a = action(Verb::kRegMr, side);
    a.pd = pd;
    a.address = model_.bases[side][memory];
    a.length = kMemoryBytes;
    a.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
               IBV_ACCESS_REMOTE_ATOMIC;
    if (!whole) {
      a.length = 512 + below(kMemoryBytes - 1024);
      a.address += below(static_cast<uint32_t>(kMemoryBytes - a.length)) / 8 * 8;
      a.access = kSome[below(std::size(kSome))];
    }
    a.iova = a.address;
    if (chance(40)) a.iova = (uint64_t{a.id} << 40) + (a.address & 0xFFFFFF8);
    act(a);
    return a.id;
  }

  void furnish(uint32_t side) {
    Action pd = action(Verb::kAllocPd, side);
    act(pd);
    for (uint32_t memory = 0; memory < kMemories && ok(); ++memory)
      reg_mr(side, pd.id, memory, true);
    create_cq(side);
    Action xrcd = action(Verb::kOpenXrcd, side);
    xrcd.flag = chance(15);
    act(xrcd);
    Action ah = action(Verb::kCreateAh, side);
    ah.pd = pd.id;
    ah.flag = chance(50);
    act(ah);
  }

  void create_cq(uint32_t side) {
    Action a = action(Verb::kCreateCq, side);
    a.number = 256 + below(512);
    act(a);
  }

  /** Receives of a queue without order are alike. */
  struct Slots {
    uint32_t mr, memory, length, pieces;
  };

  Slots slots_in(uint32_t side, uint32_t pd) {
    static constexpr uint32_t kLengths[] = {64, 300, 700, kSlotBytes};
    const uint32_t memory = 2 + below(2);
    const uint32_t mr = reg_mr(side, pd, memory, true);
    return {mr, memory, kLengths[below(std::size(kLengths))], 1 + below(2)};
  }

  void create_srq(uint32_t side) {
    const uint32_t pd = any_of(model_.pds, side);
    if (pd == 0) return;
    Action a = action(Verb::kCreateSrq, side);
    a.pd = pd;
    a.recv_wr = 1 + below(8);
    a.recv_sge = 2;
    if (chance(60)) {
      a.xrcd = any_of(model_.xrcds, side);
      a.cq = any_of(model_.cqs, side);
      if (a.xrcd == 0 || a.cq == 0) return;
    }
    const Slots slots = slots_in(side, pd);
    act(a);
    slots_[a.id] = slots;
  }

  void create_qp(uint32_t side) {
    static constexpr ibv_qp_type kTypes[] = {IBV_QPT_RC,       IBV_QPT_RC,       IBV_QPT_RC,
                                             IBV_QPT_UC,       IBV_QPT_UD,       IBV_QPT_XRC_SEND,
                                             IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, IBV_QPT_UC};
    Action a = action(Verb::kCreateQp, side);
    a.type = kTypes[below(std::size(kTypes))];
    a.pd = any_of(model_.pds, side);
    a.cq = any_of(model_.cqs, side);
    a.recv_cq = any_of(model_.cqs, side);
    a.xrcd = a.type == IBV_QPT_XRC_RECV ? any_of(model_.xrcds, side) : 0;
    if (a.pd == 0 || a.cq == 0 || (a.type == IBV_QPT_XRC_RECV && a.xrcd == 0)) return;
    a.send_wr = 1 + below(8);
    a.send_sge = 1 + below(kPieces);
    a.inline_data = chance(70) ? 64 : 0;
    a.recv_wr = 1 + below(8);
    a.recv_sge = a.type == IBV_QPT_UD ? 2 : 1 + below(kPieces);
    a.flag = chance(20);
    const bool receives = a.type != IBV_QPT_XRC_RECV && a.type != IBV_QPT_XRC_SEND;
    if (receives && chance(35)) {
      a.srq = any(model_.srqs,
                  [side](const SharedQueue& srq) { return srq.side == side && srq.xrcd == 0; });
    }
    Slots slots = {};
    if (a.type == IBV_QPT_UD && a.srq == 0) slots = slots_in(side, a.pd);
    act(a);
    slots_[a.id] = slots;
  }

  void open_qp(uint32_t side) {
    const uint32_t target = any_qp([](const QueuePair& qp) { return !qp.owned(); });
    Action a = action(Verb::kOpenQp, side);
    a.xrcd = any_of(model_.xrcds, side);
    if (a.xrcd == 0) return;
    a.number = target == 0 ? 0x123456 : qp_of(target).number;
    if (chance(5)) a.number ^= 1 + below(7);
    act_and_settle(a);
  }

  void modify(uint32_t handle, ibv_qp_state state, uint32_t dest = 0, bool from_stopped = false) {
    if (handle == 0) return;
    const QueuePair& qp = qp_of(handle);
    Action a = action(Verb::kModifyQp, model_.handles.at(handle).side, handle);
    a.type = qp.type;
    a.state = state;
    a.number = dest;
    a.flag = state == IBV_QPS_SQD ? chance(50) : from_stopped;
    a.access = chance(90)
                   ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
                   : IBV_ACCESS_REMOTE_READ;
    a.qkey = chance(90) ? 0x11 : 0x22;
    a.rnr_retry = chance(75) ? 7 : below(7);
    a.depth = chance(95) ? 4 : 0;
    a.dest_depth = chance(95) ? 4 : 0;
    act_and_settle(a);
  }

  void bring_up(uint32_t handle, uint32_t dest) {
    modify(handle, IBV_QPS_INIT);
    if (chance(60)) post_recv(handle);
    modify(handle, IBV_QPS_RTR, dest);
    if (chance(95)) modify(handle, IBV_QPS_RTS);
  }

  void connect() {
    const auto is_new = [](const QueuePair& qp) { return qp.state == IBV_QPS_RESET; };
    const uint32_t one = any_qp(is_new);
    if (one == 0) return;
    const QueuePair& qp = qp_of(one);
    const ibv_qp_type type = qp.type;
    if (type == IBV_QPT_UD || type == IBV_QPT_XRC_RECV) return bring_up(one, 0);
    if (type == IBV_QPT_XRC_SEND) {
      const uint32_t target = any_qp([](const QueuePair& other) { return !other.owned(); });
      if (target == 0) return;
      if (qp_of(target).state == IBV_QPS_RESET) bring_up(target, 0);
      return bring_up(one, qp_of(target).number);
    }
    const uint32_t other = any_qp(
        [&](const QueuePair& peer) { return is_new(peer) && peer.type == type && &peer != &qp; });
    if (other == 0 || chance(3)) return bring_up(one, qp.number);  // with itself
    bring_up(one, qp_of(other).number);
    bring_up(other, qp_of(one).number);
  }

  void post_recv(uint32_t handle, uint32_t srq = 0) {
    Action a = action(Verb::kPostRecv, 0, handle != 0 ? handle : new_id());
    a.srq = srq;
    Slots slots = {};
    uint32_t pd = 0, most = kPieces;
    if (srq != 0) {
      a.side = model_.srqs.at(srq).side;
      slots = slots_.at(srq);
    } else {
      a.side = model_.handles.at(handle).side;
      const QueuePair& qp = qp_of(handle);
      if (qp.type == IBV_QPT_UD && qp.own) slots = slots_.at(handle);
      pd = qp.pd;
      if (qp.own) most = qp.own->max_sge + (chance(1) ? 1 : 0);
    }
    most = std::min(most, kPieces);
    const uint32_t wanted = 1 + below(kWrs);
    for (uint32_t i = 0; i < wanted; ++i) {
      Wr& wr = a.wrs[a.count];
      wr.wr_id = kReceive | ++wr_ids_;
      const uint32_t memory = slots.mr != 0 ? slots.memory : 2 + below(2);
      const uint64_t slot =
          model_.bases[a.side][memory] + below(kMemoryBytes / kSlotBytes) * kSlotBytes;
      bool free = model_.slot_is_free(a.side, slot);
      for (uint32_t k = 0; k < a.count; ++k) free &= a.wrs[k].remote != slot;
      if (!free) continue;
      wr.remote = slot;  // not the device's matter
      if (slots.mr != 0) {
        const auto mr = model_.mrs.find(slots.mr);
        if (mr == model_.mrs.end()) break;
        const uint64_t address = mr->second.iova + (slot - mr->second.address);
        wr.count = slots.pieces;
        const uint32_t first = slots.pieces == 1 ? slots.length : slots.length / 3;
        wr.pieces[0] = {address, first, mr->second.key};
        wr.pieces[1] = {address + first, slots.length - first, mr->second.key};
      } else {
        wr.count = chance(5) ? 0 : 1 + below(most);
        uint64_t at = slot;
        for (uint32_t p = 0; p < wr.count; ++p) {
          const uint32_t room = static_cast<uint32_t>(slot + kSlotBytes - at);
          const uint32_t length = p + 1 == wr.count ? below(room + 1) : below(room / 3 + 1);
          wr.pieces[p] = piece_at(pd, a.side, at, length);
          at += length;
        }
      }
      ++a.count;
    }
    if (a.count != 0) act_and_settle(a);
  }

  void post_send(uint32_t handle) {
    static constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_SEND,
                                                 IBV_WR_SEND,
                                                 IBV_WR_SEND_WITH_IMM,
                                                 IBV_WR_RDMA_WRITE,
                                                 IBV_WR_RDMA_WRITE_WITH_IMM,
                                                 IBV_WR_RDMA_READ,
                                                 IBV_WR_ATOMIC_CMP_AND_SWP,
                                                 IBV_WR_ATOMIC_FETCH_AND_ADD};
    const QueuePair& qp = qp_of(handle);
    Action a = action(Verb::kPostSend, model_.handles.at(handle).side, handle);
    a.count = 1 + below(kWrs);
    for (uint32_t i = 0; i < a.count; ++i) {
      Wr& wr = a.wrs[i];
      wr.wr_id = ++wr_ids_;
      wr.opcode = kOpcodes[below(std::size(kOpcodes))];
      if (qp.type == IBV_QPT_UD && chance(95)) wr.opcode = kOpcodes[below(3)];
      if (qp.type == IBV_QPT_UC && chance(95)) wr.opcode = kOpcodes[below(5)];
      const bool atomic = wr.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP;
      const bool fetching = atomic || wr.opcode == IBV_WR_RDMA_READ;
      if (chance(60)) wr.flags |= IBV_SEND_SIGNALED;
      if (chance(20)) wr.flags |= IBV_SEND_SOLICITED;
      if (chance(20)) wr.flags |= IBV_SEND_FENCE;
      if (qp.max_inline != 0 && chance(30) && !(fetching && chance(99)))
        wr.flags |= IBV_SEND_INLINE;
      wr.imm = static_cast<uint32_t>(rng_.next());
      const uint32_t most = std::max(qp.max_send_sge, 1u);
      wr.count = std::min(kPieces, chance(1) ? most + 1 : 1 + below(most));
      if (atomic) wr.count = 1;
      uint32_t total = 0;
      for (uint32_t p = 0; p < wr.count; ++p) {
        uint32_t length = atomic ? 8 : length_for(qp.type == IBV_QPT_UD && chance(97) ? 600 : 1500);
        if ((wr.flags & IBV_SEND_INLINE) != 0) length = below(chance(2) ? 100 : 64 / wr.count + 1);
        wr.pieces[p] = piece(qp.pd, fetching ? kFetched : kSent, length,
                             fetching ? static_cast<uint32_t>(IBV_ACCESS_LOCAL_WRITE) : 0);
        if ((wr.flags & IBV_SEND_INLINE) != 0) {
          wr.pieces[p].address = model_.bases[qp.side][0] + below(kArea - length);
          wr.pieces[p].key = 0;
        }
        total += length;
      }
      if (atomic && chance(10)) {
        wr.pieces[0].length = 4;
        if (most > 1 && chance(70)) {
          wr.count = 2;
          wr.pieces[1] = piece(qp.pd, kFetched, 4, IBV_ACCESS_LOCAL_WRITE);
        }
      }
      wr.compare = chance(50) ? below(4) : rng_.next();
      wr.swap = below(4);
      address_remote(qp, wr, total, atomic);
    }
    act_and_settle(a);
  }

  /** The receiver's end of a WR. */
  void address_remote(const QueuePair& qp, Wr& wr, uint32_t total, bool atomic) {
    uint32_t pd = 0;
    if (qp.type == IBV_QPT_UD) {
      wr.ah = any(model_.ahs,
                  [&](const Model::Address& ah) { return ah.pd == qp.pd && ah.side == qp.side; });
      if (wr.ah == 0 || chance(1)) wr.ah = any_of(model_.ahs, qp.side);
      if (wr.ah == 0) return;
      const uint32_t to = any_qp([](const QueuePair& other) { return other.type == IBV_QPT_UD; });
      wr.qpn = to == 0 ? 1 : qp_of(to).number;
      wr.qkey = chance(80) ? 0x11 : chance(50) ? 0x22 : 1u << 31;
      return;
    }
    if (qp.type == IBV_QPT_XRC_SEND) {
      const uint32_t srq = any(model_.srqs, [](const SharedQueue& one) { return one.xrcd != 0; });
      wr.srqn = srq == 0 || chance(1) ? 0x777 : model_.srqs.at(srq).number;
      if (srq != 0) pd = model_.srqs.at(srq).pd;
    } else if (model_.qps.count(qp.dest) != 0) {
      pd = model_.qps.at(qp.dest).pd;
    }
    if (pd == 0) return;
    const uint32_t need = atomic                          ? IBV_ACCESS_REMOTE_ATOMIC
                          : wr.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
                                                          : IBV_ACCESS_REMOTE_WRITE;
    const Piece to = piece(pd, kRemote, atomic ? 8 : total, need, atomic || total == 8 ? 8 : 1);
    wr.remote = to.address;
    wr.rkey = to.key;
    if (atomic && chance(1)) wr.remote += 4;
  }

  void scribble() {
    const uint32_t side = below(2);
    Action a = action(Verb::kFill, side);
    a.length = 1 + below(1000);
    a.address = model_.bases[side][below(2)] + below(3) * kArea +
                below(kArea - static_cast<uint32_t>(a.length));
    a.iova = rng_.next();
    act(a);
  }

  void destroy_something(uint32_t side) {
    const auto end = [&](Verb verb, uint32_t id) {
      if (id == 0) return;
      const Action a = action(verb, side, id);
      if (verb == Verb::kDeregMr) dead_key_ = model_.mrs.at(id).key;
      act_and_settle(a);
    };
    switch (below(12)) {
      case 0:
        return end(Verb::kDeallocPd, any_of(model_.pds, side));
      case 1:
        return end(Verb::kDestroyCq, any_of(model_.cqs, side));
      case 2:
        return end(Verb::kCloseXrcd, any_of(model_.xrcds, side));
      case 3:
      case 4:
        return end(Verb::kDestroySrq, any_of(model_.srqs, side));
      case 5:
        return end(Verb::kDestroyAh, any_of(model_.ahs, side));
      case 6:
      case 7:
        // Whoever takes the memory of a posted receive away must not be surprised.
        return end(Verb::kDeregMr, any(model_.mrs, [&](const Region& mr) {
                     return mr.side == side && !model_.is_needed(mr);
                   }));
      default:
        return end(Verb::kDestroyQp, any_of(model_.handles, side));
    }
  }

  void create_something(uint32_t side) {
    if (count(model_.pds, side) < 2 || count(model_.cqs, side) < 2 ||
        count(model_.xrcds, side) < 1 || count(model_.ahs, side) < 1)
      furnish(side);
    if (count(model_.mrs, side) < 24) {
      const uint32_t pd = any_of(model_.pds, side);
      if (pd != 0) reg_mr(side, pd, below(kMemories), chance(40));
    }
    if (count(model_.srqs, side) < 4) create_srq(side);
    if (count(model_.handles, side) < 10) create_qp(side);
    if (chance(10)) open_qp(side);
  }

  void step() {
    const uint32_t side = below(2);
    const uint32_t dice = below(100);
    if (dice < 38) {
      uint32_t handle = any_qp([](const QueuePair& qp) {
        return qp.owned() && (qp.state == IBV_QPS_RTS || qp.state == IBV_QPS_SQD);
      });
      if (handle == 0 || chance(4)) handle = any_of(model_.handles, side);
      if (handle != 0 && qp_of(handle).owned()) post_send(handle);
    } else if (dice < 62) {
      const uint32_t srq = any_of(model_.srqs, side);
      const uint32_t handle =
          any_qp([](const QueuePair& qp) { return qp.owned() && (qp.own || qp.waiting.empty()); });
      if (srq != 0 && chance(50)) {
        post_recv(0, srq);
      } else if (handle != 0) {
        post_recv(handle);
      }
    } else if (dice < 72) {
      const uint32_t cq = any_of(model_.cqs, side);
      if (cq != 0) poll(cq);
    } else if (dice < 80) {
      connect();
    } else if (dice < 83) {
      revive();
    } else if (dice < 89) {
      create_something(side);
    } else if (dice < 91) {
      destroy_something(side);
    } else if (dice < 94) {
      scribble();
    } else if (dice < 97) {
      const ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
                                     IBV_QPS_RTS,   IBV_QPS_SQD,  IBV_QPS_ERR};
      const uint32_t handle = any_of(model_.handles, side);
      if (handle != 0)
        modify(handle, states[below(std::size(states))], qp_of(handle).dest, chance(50));
    } else if (dice < 98) {
      const uint32_t srq = any_of(model_.srqs, side);
      if (srq == 0) return;
      Action a = action(Verb::kLimitSrq, side, srq);
      a.number = below(6);
      act_and_settle(a);
    } else {
      const uint32_t cq = any_of(model_.cqs, side);
      if (cq == 0) return;
      empty(cq);
      Action a = action(Verb::kResizeCq, side, cq);
      a.number = chance(10) ? 0 : 256 + below(512);
      act(a);
    }
  }

  /** Out of ERR, SQE and SQD. */
  void revive() {
    const uint32_t handle = any_qp([](const QueuePair& qp) { return qp.state > IBV_QPS_RTS; });
    if (handle == 0) return;
    const ibv_qp_state state = qp_of(handle).state;
    if (state == IBV_QPS_ERR || chance(20)) return modify(handle, IBV_QPS_RESET);
    modify(handle, IBV_QPS_RTS, 0, true);
  }

  void finish() {
    std::vector<uint32_t> all;
    for (const auto& [id, cq] : model_.cqs) all.push_back(id);
    for (uint32_t id : all) empty(id);
    look_at_memory();
    while (ok()) {
      uint32_t left = 0;
      for (uint32_t side = 0; side < 2; ++side) {
        const uint32_t here = count(model_.pds, side) + count(model_.mrs, side) +
                              count(model_.cqs, side) + count(model_.xrcds, side) +
                              count(model_.srqs, side) + count(model_.handles, side) +
                              count(model_.ahs, side);
        if (here != 0) destroy_something(side);
        left += here;
      }
      if (left == 0) break;
    }
    look_at_memory();
    for (uint32_t side = 0; side < 2; ++side) act(action(Verb::kClose, side));
    if (remote_ != nullptr && ok()) {
      const int code = remote_->wait();
      if (code != 0) problem_ = "the other process ended with " + std::to_string(code);
    }
  }

  base::Rng rng_;
  Model model_;
  const bool loud_;
  std::unique_ptr<Side> sides_[2];
  RemoteSide* remote_ = nullptr;
  std::map<uint32_t, Slots> slots_;
  uint32_t ids_ = 0;
  uint64_t wr_ids_ = 0;
  uint64_t actions_ = 0;
  uint32_t dead_key_ = 0xDEAD00;
  std::string problem_;
  std::vector<std::string> trace_;
};

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : strtoull(text, nullptr, 0);
}

void walk(bool one_process) {
  const uint64_t chosen = number_from("MILLRACE_WALK_SEED", 0);
  const uint64_t until = base::now_ns() + number_from("MILLRACE_WALK_SECONDS", 3) * 1'000'000'000u;
  uint64_t seed = chosen != 0 ? chosen : base::now_ns();
  uint64_t walks = 0, actions = 0;
  do {
    Fabric fabric;
    {
      Walk one(seed, one_process, chosen != 0);
      ASSERT_TRUE(one.run(600)) << "MILLRACE_WALK_SEED=" << seed << ": " << one.report();
      actions += one.actions();
    }
    ASSERT_FALSE(fabric.exists()) << "MILLRACE_WALK_SEED=" << seed << ": something is left";
    ++seed;
    ++walks;
  } while (chosen == 0 && base::now_ns() < until);
  printf("%llu walks, %llu actions\n", static_cast<unsigned long long>(walks),
         static_cast<unsigned long long>(actions));
}

TEST(SoftWalk, EndpointsInOneProcess) { walk(true); }

TEST(SoftWalk, EndpointsInTwoProcesses) { walk(false); }

}  // namespace
