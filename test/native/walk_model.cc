#include "walk_model.h"

#include <errno.h>

#include <algorithm>

namespace millrace::test::walk {
namespace {

constexpr uint32_t kHeader = 40;

bool fetches(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
         opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
bool writes(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool is_atomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
bool takes_receive(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
         opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool has_immediate(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
ibv_wc_opcode completes_as(ibv_wr_opcode opcode) {
  if (writes(opcode)) return IBV_WC_RDMA_WRITE;
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}
bool service_has(ibv_qp_type type, ibv_wr_opcode opcode) {
  if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND) return true;
  if (type == IBV_QPT_UC) return !fetches(opcode);
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}
bool can_receive(const QueuePair& qp) { return qp.state >= IBV_QPS_RTR && qp.state <= IBV_QPS_SQE; }
ibv_event_type event_of(ibv_wc_status status) {
  if (status == IBV_WC_REM_ACCESS_ERR) return IBV_EVENT_QP_ACCESS_ERR;
  if (status == IBV_WC_REM_INV_REQ_ERR) return IBV_EVENT_QP_REQ_ERR;
  return IBV_EVENT_QP_FATAL;
}
bool contains(uint64_t start, uint64_t size, uint64_t at, uint64_t length) {
  return at >= start && at - start <= size && length <= size - (at - start);
}

}  // namespace

uint32_t Completions::pending() const {
  size_t sum = 0;
  for (const auto& [key, stream] : streams) sum += stream.size();
  return static_cast<uint32_t>(sum);
}

// Memory -----------------------------------------------------------------------------------------

Model::Model(bool one_process) : one_process_(one_process) {
  for (auto& side : memories_)
    for (Bytes& bytes : side) bytes.resize(kMemoryBytes);
}

uint8_t* Model::memory(uint32_t side, uint64_t address) {
  for (uint32_t i = 0; i < kMemories; ++i) {
    Bytes& bytes = memories_[side][i];
    if (address - bases[side][i] < kMemoryBytes) return bytes.data() + (address - bases[side][i]);
  }
  return nullptr;
}

uint64_t Model::hash_of(uint32_t side) const {
  const Bytes& first = memories_[side][0];
  const Bytes& second = memories_[side][1];
  return hash(second.data(), second.size(), hash(first.data(), first.size()));
}

bool Model::is_needed(const Region& one) {
  return std::any_of(open_.begin(), open_.end(), [&](const auto& entry) {
    return queue(entry.second.queue) != nullptr && entry.second.keys.count(one.key) != 0;
  });
}

void Model::forget_receive(uint64_t wr_id) {
  const auto found = open_.find(wr_id);
  slots_.erase({found->second.side, found->second.slot});
  open_.erase(found);
}

const Region* Model::region(uint32_t key) const {
  for (const auto& [id, mr] : mrs)
    if (mr.key == key) return &mr;
  return nullptr;
}

uint8_t* Model::element(uint32_t pd, const Piece& piece, uint32_t access) {
  const Region* mr = region(piece.key);
  if (mr == nullptr || mr->pd != pd || (mr->access & access) != access ||
      !contains(mr->iova, mr->length, piece.address, piece.length))
    return nullptr;
  return memory(mr->side, mr->address + (piece.address - mr->iova));
}

bool Model::gather(const QueuePair& qp, const QueuePair::Waiting& work, bool fetching, Bytes* data,
                   std::vector<Target>* into, uint32_t* total) {
  const Wr& wr = work.wr;
  const bool is_inline = (wr.flags & IBV_SEND_INLINE) != 0 && !fetching;
  *total = 0;
  for (uint32_t i = 0; i < wr.count; ++i) {
    const uint32_t length = wr.pieces[i].length;
    *total += length;
    if (length == 0) continue;
    if (is_inline) {
      data->insert(data->end(), work.inline_data[i].begin(), work.inline_data[i].end());
      continue;
    }
    uint8_t* at = element(qp.pd, wr.pieces[i], fetching ? IBV_ACCESS_LOCAL_WRITE : 0);
    if (at == nullptr) return false;
    if (fetching) {
      into->push_back({at, length});
    } else {
      data->insert(data->end(), at, at + length);
    }
  }
  return true;
}

uint8_t* Model::remote(const QueuePair& target, uint32_t pd, const Wr& wr, uint32_t need,
                       uint32_t length) {
  if ((target.access & need) == 0) return nullptr;
  return element(pd, {wr.remote, length, wr.rkey}, need);
}

// Running ----------------------------------------------------------------------------------------

Queue* Model::queue(uint32_t id) {
  if ((id >> 31) != 0) {
    const auto found = qps.find(id & ~(1u << 31));
    return found == qps.end() || !found->second.own ? nullptr : &*found->second.own;
  }
  const auto found = srqs.find(id);
  return found == srqs.end() ? nullptr : &found->second.queue;
}

SharedQueue* Model::find_srq(uint32_t number) {
  for (auto& [id, srq] : srqs)
    if (srq.xrcd != 0 && srq.number == number) return &srq;
  return nullptr;
}

/** The other end of a connection, if it answers. */
QueuePair* Model::ready_target(const QueuePair& qp) {
  const auto found = qps.find(qp.dest);
  if (found == qps.end()) return nullptr;
  QueuePair& target = found->second;
  if (!can_receive(target) || target.faulted) return nullptr;
  if (qp.type == IBV_QPT_XRC_SEND) return target.type == IBV_QPT_XRC_RECV ? &target : nullptr;
  return target.type == qp.type && target.dest == qp.number ? &target : nullptr;
}

Model::Outcome Model::run(QueuePair& qp, const QueuePair::Waiting& work) {
  Bytes data;
  std::vector<Target> into;
  uint32_t total = 0;
  if (!gather(qp, work, fetches(work.wr.opcode), &data, &into, &total))
    return {IBV_WC_LOC_PROT_ERR};
  if (qp.type == IBV_QPT_UD) return run_datagram(qp, work.wr, data);
  return run_connected(qp, work.wr, data, into, total);
}

Model::Outcome Model::run_connected(QueuePair& qp, const Wr& wr, const Bytes& data,
                                    const std::vector<Target>& into, uint32_t total) {
  const bool xrc = qp.type == IBV_QPT_XRC_SEND;
  const bool silent = qp.type == IBV_QPT_UC;
  QueuePair* target = ready_target(qp);
  if (target == nullptr) {
    if (silent) return {};
    return {IBV_WC_RETRY_EXC_ERR, Wait::kTarget};
  }
  uint32_t pd = target->pd;
  uint32_t queue_id = xrc ? 0 : queue_of(*target);
  if (xrc) {
    SharedQueue* srq = find_srq(wr.srqn);
    const uint32_t key = srq == nullptr || !xrcds.at(srq->xrcd).is_private ? 0 : srq->xrcd;
    if (srq == nullptr || key != target->domain) return {IBV_WC_REM_INV_REQ_ERR};
    pd = srq->pd;
    for (const auto& [id, one] : srqs)
      if (&one == srq) queue_id = id;
  }
  if (!takes_receive(wr.opcode)) return one_sided(qp, *target, pd, wr, data, into, total);

  const bool write = writes(wr.opcode);
  const auto reaches = [&] {
    return total == 0 || remote(*target, pd, wr, IBV_ACCESS_REMOTE_WRITE, total) != nullptr;
  };
  if (write && !xrc && !reaches()) {
    if (silent) return {};
    fail_responder(*target, IBV_EVENT_QP_ACCESS_ERR, false);
    return {IBV_WC_REM_ACCESS_ERR};
  }
  if (queue(queue_id)->posted.empty()) {
    if (silent) return {};
    return {IBV_WC_RNR_RETRY_EXC_ERR, Wait::kWqe};
  }
  Outcome out;
  std::optional<ibv_wc_status> failed;
  if (write) {
    failed = IBV_WC_SUCCESS;
    if (!reaches()) {
      out.status = IBV_WC_REM_ACCESS_ERR;
      failed = IBV_WC_LOC_ACCESS_ERR;
    } else if (total != 0) {
      std::copy(data.begin(), data.end(), remote(*target, pd, wr, IBV_ACCESS_REMOTE_WRITE, total));
    }
  }
  const Arrival arrival = *receive(qp, *target, queue_id, wr, data, 0, false, failed);
  if (!write) out.status = arrival.sender;
  if (!xrc && arrival.receiver != IBV_WC_SUCCESS) fail_responder(*target, {}, true);
  if (silent) out.status = IBV_WC_SUCCESS;
  return out;
}

Model::Outcome Model::one_sided(QueuePair& qp, QueuePair& target, uint32_t pd, const Wr& wr,
                                const Bytes& data, const std::vector<Target>& into,
                                uint32_t total) {
  Outcome out;
  const bool rc = qp.type == IBV_QPT_RC;
  if (rc && fetches(wr.opcode)) {
    if (qp.depth == 0) return {IBV_WC_LOC_QP_OP_ERR};
    if (target.dest_depth == 0) {
      fail_responder(target, IBV_EVENT_QP_REQ_ERR, false);
      return {IBV_WC_REM_INV_REQ_ERR};
    }
  }
  if (is_atomic(wr.opcode)) {
    out = atomic(qp, target, pd, wr, into, total);
  } else if (total != 0) {
    const bool read = wr.opcode == IBV_WR_RDMA_READ;
    uint8_t* at =
        remote(target, pd, wr, read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE, total);
    if (at == nullptr) {
      out.status = IBV_WC_REM_ACCESS_ERR;
    } else if (!read) {
      std::copy(data.begin(), data.end(), at);
    } else {
      for (const Target& to : into) {
        memmove(to.at, at, to.length);
        at += to.length;
      }
    }
  }
  if (wr.opcode == IBV_WR_RDMA_READ) out.bytes = total;
  if (rc && (out.status == IBV_WC_REM_ACCESS_ERR || out.status == IBV_WC_REM_INV_REQ_ERR ||
             out.status == IBV_WC_REM_OP_ERR))
    fail_responder(target, event_of(out.status), false);
  if (qp.type == IBV_QPT_UC) out.status = IBV_WC_SUCCESS;
  return out;
}

Model::Outcome Model::atomic(QueuePair&, QueuePair& target, uint32_t pd, const Wr& wr,
                             const std::vector<Target>& into, uint32_t total) {
  if (total != 8) return {IBV_WC_LOC_LEN_ERR};
  if (wr.remote % 8 != 0) return {IBV_WC_REM_INV_REQ_ERR};
  uint8_t* at = remote(target, pd, wr, IBV_ACCESS_REMOTE_ATOMIC, 8);
  if (at == nullptr) return {IBV_WC_REM_ACCESS_ERR};
  uint64_t before;
  memcpy(&before, at, 8);
  uint64_t after = before + wr.compare;
  if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) after = before == wr.compare ? wr.swap : before;
  memcpy(at, &after, 8);
  const uint8_t* from = reinterpret_cast<const uint8_t*>(&before);
  for (const Target& to : into) {
    memcpy(to.at, from, to.length);
    from += to.length;
  }
  Outcome out;
  out.bytes = 8;
  return out;
}

Model::Outcome Model::run_datagram(QueuePair& qp, const Wr& wr, const Bytes& data) {
  if (data.size() > 4096) return {IBV_WC_LOC_LEN_ERR};
  const auto ah = ahs.find(wr.ah);
  if (ah == ahs.end() || ah->second.pd != qp.pd) return {IBV_WC_LOC_QP_OP_ERR};
  const auto found = qps.find(wr.qpn);
  if (found == qps.end()) return {};
  QueuePair& target = found->second;
  const uint32_t qkey = (wr.qkey >> 31) != 0 ? qp.qkey : wr.qkey;
  if (target.type != IBV_QPT_UD || !can_receive(target) || target.faulted || target.qkey != qkey)
    return {};
  const std::optional<Arrival> arrival =
      receive(qp, target, queue_of(target), wr, data, kHeader, ah->second.global, std::nullopt);
  if (arrival && arrival->receiver != IBV_WC_SUCCESS) fail_responder(target, {}, true);
  return {};
}

std::optional<Model::Arrival> Model::receive(QueuePair& from, QueuePair& target, uint32_t queue_id,
                                             const Wr& wr, const Bytes& data, uint32_t room,
                                             bool header, std::optional<ibv_wc_status> failed) {
  Queue& queue = *this->queue(queue_id);
  if (queue.posted.empty()) return std::nullopt;
  // Without order all of them are alike, but for where they lie.
  const Receive taken = queue.posted.front();
  queue.posted.pop_front();
  Arrival arrival;
  Expected one;
  if (failed) {
    arrival.receiver = *failed;
  } else {
    uint64_t sum = 0;
    for (const Piece& piece : taken.pieces) sum += piece.length;
    if (data.size() + room > sum) {
      arrival = {IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR};
    } else {
      size_t done = 0;
      uint32_t skip = header ? 0 : room;
      uint32_t in_header = header ? room : 0;
      for (const Piece& piece : taken.pieces) {
        uint32_t at = 0;
        const auto pass = [&](uint32_t* what) {
          const uint32_t n = std::min(*what, piece.length - at);
          *what -= n;
          at += n;
          return n;
        };
        pass(&skip);
        const bool touched = pass(&in_header) != 0;
        const uint32_t n = std::min(static_cast<uint32_t>(data.size() - done), piece.length - at);
        if (n == 0 && !touched) continue;
        uint8_t* to = element(queue.pd, piece, IBV_ACCESS_LOCAL_WRITE);
        if (to == nullptr) {
          arrival = {IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR};
          break;
        }
        done += n;
      }
    }
  }
  one.wr_id = taken.wr_id;
  one.queue = queue.in_order ? 0 : queue_id;
  one.status = arrival.receiver;
  one.opcode = writes(wr.opcode) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  one.byte_len = static_cast<uint32_t>(data.size()) + room;
  if (has_immediate(wr.opcode)) one.imm = wr.imm;
  one.global = header;
  if (!failed) one.data = data;
  one.skip = room;
  one.consumed = false;
  one.limited = queue_id;
  const uint32_t cq = target.owned() ? target.recv_cq : srqs.at(queue_id).cq;
  ++cqs.at(cq).rings;
  expect(cq, target.number, from.number, true, one);
  return arrival;
}

bool Model::changed_since(QueuePair& qp) {
  if (qp.wait != Wait::kWqe) return true;
  const QueuePair* target = ready_target(qp);
  if (target == nullptr || target->state != qp.seen_state) return true;
  if (qp.type == IBV_QPT_XRC_SEND) {
    const SharedQueue* srq = find_srq(qp.waiting.front().wr.srqn);
    return srq == nullptr || srq->queue.postings != qp.seen_postings;
  }
  return queue(queue_of(*target))->postings != qp.seen_postings;
}

/** Runs one work request; true: it waits. */
bool Model::start(QueuePair& qp, const QueuePair::Waiting& work) {
  const Outcome out = run(qp, work);
  if (out.wait == Wait::kNothing) {
    complete(qp, work.wr, out);
    if (out.status != IBV_WC_SUCCESS) fail_sends(qp);
    return false;
  }
  qp.wait = out.wait;
  qp.doom = out.status;
  qp.doomed = out.wait == Wait::kTarget || qp.rnr_retry < 7;
  if (out.wait == Wait::kWqe) {
    const QueuePair& target = *ready_target(qp);
    qp.seen_state = target.state;
    qp.seen_postings = qp.type == IBV_QPT_XRC_SEND ? find_srq(work.wr.srqn)->queue.postings
                                                   : queue(queue_of(target))->postings;
    // Not a single retry: at once.
    if (qp.rnr_retry == 0) {
      complete(qp, work.wr, out);
      fail_sends(qp);
      return false;
    }
  }
  return true;
}

void Model::complete(QueuePair& qp, const Wr& wr, const Outcome& out) {
  qp.wait = Wait::kNothing;
  qp.doomed = false;
  if (out.status == IBV_WC_SUCCESS && !qp.all_signaled && (wr.flags & IBV_SEND_SIGNALED) == 0)
    return;
  Expected one;
  one.wr_id = wr.wr_id;
  one.status = out.status;
  one.opcode = completes_as(wr.opcode);
  one.byte_len = out.bytes;
  expect(qp.send_cq, qp.number, 0, false, one);
}

void Model::expect(uint32_t cq, uint32_t qp, uint32_t from, bool received, const Expected& one) {
  cqs.at(cq).streams[{qp, from, received}].push_back(one);
}

bool Model::run_waiting(QueuePair& qp) {
  bool any = false;
  while (!qp.waiting.empty() &&
         (qp.state == IBV_QPS_RTS || (qp.state == IBV_QPS_SQD && qp.draining))) {
    if (!changed_since(qp)) break;
    const QueuePair::Waiting front = qp.waiting.front();
    const Outcome out = run(qp, front);
    if (out.wait != Wait::kNothing && !(out.wait == Wait::kWqe && qp.rnr_retry == 0)) {
      const bool was_doomed = qp.doomed;
      (void)start(qp, front);  // the same again: notes what it waits for
      any |= qp.doomed && !was_doomed;
      break;
    }
    any = true;
    complete(qp, front.wr, out);
    pop(qp);
    if (out.status != IBV_WC_SUCCESS) {
      fail_sends(qp);
    } else if (qp.draining) {
      drained(qp);
    }
  }
  return any;
}

bool Model::pass(uint32_t side) {
  bool any = false;
  for (auto& [number, qp] : qps) {
    if (!qp.faulted || (!one_process_ && qp.side != side)) continue;
    any |= qp.state != IBV_QPS_ERR && qp.state != IBV_QPS_RESET;
    notice(qp);
  }
  const std::vector<uint32_t> visiting = order_[side];
  for (uint32_t number : visiting) any |= run_waiting(qps.at(number));
  return any;
}

bool Model::doomed() const {
  return std::any_of(qps.begin(), qps.end(), [](const auto& one) {
    const QueuePair& qp = one.second;
    return qp.doomed && !qp.waiting.empty() &&
           (qp.state == IBV_QPS_RTS || (qp.state == IBV_QPS_SQD && qp.draining));
  });
}

void Model::expire() {
  for (uint32_t side = 0; side < 2; ++side) {
    const std::vector<uint32_t> visiting = order_[side];
    for (uint32_t number : visiting) {
      QueuePair& qp = qps.at(number);
      if (!qp.doomed || qp.waiting.empty()) continue;
      if (qp.state != IBV_QPS_RTS && !(qp.state == IBV_QPS_SQD && qp.draining)) continue;
      Outcome out;
      out.status = qp.doom;
      complete(qp, Wr(qp.waiting.front().wr), out);
      pop(qp);
      fail_sends(qp);
    }
  }
}

// States -----------------------------------------------------------------------------------------

void Model::set_waiting(QueuePair& qp, bool on) {
  std::vector<uint32_t>& order = order_[qp.side];
  const auto found = std::find(order.begin(), order.end(), qp.number);
  if ((found != order.end()) == on) return;
  if (on) {
    order.push_back(qp.number);
  } else {
    order.erase(found);
  }
}

void Model::pop(QueuePair& qp) {
  qp.waiting.pop_front();
  qp.wait = Wait::kNothing;
  qp.doomed = false;
  if (qp.waiting.empty()) set_waiting(qp, false);
}

void Model::raise(uint32_t side, ibv_event_type type, uint32_t number) {
  events_[side].insert({type, number});
}

void Model::drained(QueuePair& qp) {
  qp.draining = false;
  if (qp.notify) raise(qp.side, IBV_EVENT_SQ_DRAINED, qp.number);
  qp.notify = false;
}

void Model::fail_responder(QueuePair& target, ibv_event_type type, bool reported) {
  if (target.faulted) return;
  target.faulted = true;
  target.fault = type;
  target.reported = reported;
}

void Model::notice(QueuePair& qp) {
  if (!qp.faulted || qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_RESET) return;
  if (!qp.reported) raise(qp.side, qp.fault, qp.number);
  enter_error(qp);
}

void Model::flush_waiting(QueuePair& qp) {
  while (!qp.waiting.empty()) {
    complete(qp, Wr(qp.waiting.front().wr), {IBV_WC_WR_FLUSH_ERR});
    pop(qp);
  }
  qp.draining = qp.notify = false;
}

void Model::enter_error(QueuePair& qp) {
  if (qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_RESET) return;
  qp.state = IBV_QPS_ERR;
  flush_waiting(qp);
  if (qp.own) {
    collect(qp.recv_cq);
    Queue& queue = *qp.own;
    for (const Receive& one : queue.posted) {
      Expected flushed;
      flushed.wr_id = one.wr_id;
      flushed.queue = queue.in_order ? 0 : own_queue(qp.number);
      flushed.status = IBV_WC_WR_FLUSH_ERR;
      expect(qp.recv_cq, qp.number, 0, true, flushed);
    }
    queue.in_use -= static_cast<uint32_t>(queue.posted.size());
    queue.posted.clear();
    ++queue.postings;
  } else if (qp.srq != 0 && !qp.last_wqe_told) {
    qp.last_wqe_told = true;
    raise(qp.side, IBV_EVENT_QP_LAST_WQE_REACHED, qp.number);
  }
}

void Model::fail_sends(QueuePair& qp) {
  const bool connected = qp.type != IBV_QPT_UD && qp.type != IBV_QPT_UC;
  if (connected || (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_SQD)) return enter_error(qp);
  qp.state = IBV_QPS_SQE;
  flush_waiting(qp);
}

/** A receive whose completion is taken out of where it came in goes back to its queue. */
void Model::consume(Expected& one) {
  if (one.consumed) return;
  one.consumed = true;
  Queue* queue = this->queue(one.limited);
  if (queue == nullptr) return;
  --queue->in_use;
  if (queue->limit != 0 && queue->in_use < queue->limit) {
    queue->limit = 0;
    raise(queue->side, IBV_EVENT_SRQ_LIMIT_REACHED, one.limited);
  }
}

void Model::collect(uint32_t cq) {
  for (auto& [key, stream] : cqs.at(cq).streams)
    for (Expected& one : stream) consume(one);
}

void Model::purge(QueuePair& qp) {
  for (uint32_t cq : {qp.send_cq, qp.recv_cq}) {
    if (cq == 0) continue;
    auto& streams = cqs.at(cq).streams;
    for (auto it = streams.begin(); it != streams.end();) {
      if (std::get<0>(it->first) != qp.number) {
        ++it;
        continue;
      }
      for (Expected& one : it->second) consume(one);
      it = streams.erase(it);
    }
  }
}

void Model::reset(QueuePair& qp) {
  while (!qp.waiting.empty()) pop(qp);
  qp.draining = qp.notify = false;
  qp.last_wqe_told = false;
  qp.depth = 0;
  qp.rnr_retry = 0;
  qp.state = IBV_QPS_RESET;
  purge(qp);
  if (!qp.receives()) return;
  if (qp.own) {
    qp.own->posted.clear();
    qp.own->in_use = 0;
    ++qp.own->postings;
    std::vector<uint64_t> gone;
    for (const auto& [wr_id, open] : open_)
      if (open.queue == own_queue(qp.number)) gone.push_back(wr_id);
    for (uint64_t wr_id : gone) forget_receive(wr_id);
    last_flush_.erase(own_queue(qp.number));
  }
  qp.faulted = false;
}

int Model::modify(const Action& action) {
  QueuePair& qp = qps.at(handles.at(action.id).number);
  notice(qp);
  const ibv_qp_state from = qp.state, to = action.state;
  const bool from_stopped = to == IBV_QPS_RTS && action.flag;
  const bool unconnected = qp.type == IBV_QPT_UD || qp.type == IBV_QPT_UC;
  bool there = false;
  switch (to) {
    case IBV_QPS_RESET:
      there = true;
      break;
    case IBV_QPS_INIT:
      there = from == IBV_QPS_RESET || from == IBV_QPS_INIT;
      break;
    case IBV_QPS_RTR:
      there = from == IBV_QPS_INIT;
      break;
    case IBV_QPS_RTS:
      there = from_stopped ? from == IBV_QPS_RTS || from == IBV_QPS_SQD ||
                                 (from == IBV_QPS_SQE && unconnected)
                           : from == IBV_QPS_RTR;
      break;
    case IBV_QPS_SQD:
      there = from == IBV_QPS_RTS;
      break;
    case IBV_QPS_ERR:
      there = from != IBV_QPS_RESET;
      break;
    default:
      break;
  }
  if (!there) return EINVAL;
  if (to == IBV_QPS_INIT) {
    if (qp.type == IBV_QPT_UD) {
      qp.qkey = action.qkey;
    } else {
      qp.access = action.access;
    }
  }
  if (to == IBV_QPS_RTR && qp.type != IBV_QPT_UD) {
    qp.dest = action.number;
    qp.dest_depth = action.dest_depth;
  }
  if (to == IBV_QPS_RTS && !action.flag) {
    qp.rnr_retry = action.rnr_retry;
    qp.depth = action.depth;
  }
  if (!qp.owned()) {
    qp.state = to;
    return 0;
  }
  if (to == IBV_QPS_RESET) {
    reset(qp);
  } else if (to == IBV_QPS_ERR) {
    enter_error(qp);
  } else {
    qp.state = to;
    if (to == IBV_QPS_SQD) {
      qp.draining = !qp.waiting.empty();
      qp.notify = action.flag;
      if (!qp.draining) drained(qp);
    }
    if (to == IBV_QPS_RTS && from == IBV_QPS_SQD) (void)run_waiting(qp);
  }
  return 0;
}

// Verbs ------------------------------------------------------------------------------------------

std::string Model::create(const Action& action, const Reply& reply) {
  const uint32_t id = action.id, side = action.side;
  switch (action.verb) {
    case Verb::kAllocPd:
      pds[id] = {side};
      return "";
    case Verb::kRegMr:
      if (region(reply.number) != nullptr) return "the key is in use";
      mrs[id] = {side,        action.pd,     action.address, action.length,
                 action.iova, action.access, reply.number};
      ++pds.at(action.pd).users;
      return "";
    case Verb::kCreateCq:
      cqs[id].side = side;
      return "";
    case Verb::kOpenXrcd:
      xrcds[id] = {side, action.flag};
      return "";
    case Verb::kCreateSrq: {
      SharedQueue srq = {};
      srq.side = side;
      srq.pd = action.pd;
      srq.xrcd = action.xrcd;
      srq.cq = action.cq;
      srq.number = reply.number;
      srq.queue.side = side;
      srq.queue.pd = action.pd;
      srq.queue.max_wr = action.recv_wr;
      srq.queue.max_sge = action.recv_sge;
      srq.queue.in_order = false;
      if (action.xrcd != 0) {
        if (find_srq(reply.number) != nullptr) return "the SRQ's number is in use";
        ++xrcds.at(action.xrcd).users;
        ++cqs.at(action.cq).users;
      }
      ++pds.at(action.pd).users;
      srqs[id] = srq;
      return "";
    }
    case Verb::kCreateQp: {
      if (qps.count(reply.number) != 0) return "the QP's number is in use";
      QueuePair qp = {};
      qp.side = side;
      qp.number = reply.number;
      qp.type = action.type;
      handles[id] = {side, reply.number, action.xrcd};
      if (!qp.owned()) {
        qp.domain = xrcds.at(action.xrcd).is_private ? action.xrcd : 0;
        ++xrcds.at(action.xrcd).users;
      } else {
        qp.pd = action.pd;
        qp.send_cq = action.cq;
        qp.max_send_wr = action.send_wr;
        qp.max_send_sge = action.send_sge;
        qp.max_inline = action.inline_data;
        qp.all_signaled = action.flag;
        ++pds.at(action.pd).users;
        ++cqs.at(action.cq).users;
      }
      if (qp.receives()) {
        qp.recv_cq = action.recv_cq;
        qp.srq = action.srq;
        ++cqs.at(action.recv_cq).users;
        if (action.srq != 0) {
          ++srqs.at(action.srq).users;
        } else {
          qp.own = Queue{};
          qp.own->side = side;
          qp.own->pd = action.pd;
          qp.own->max_wr = action.recv_wr;
          qp.own->max_sge = action.recv_sge;
          qp.own->in_order = action.type != IBV_QPT_UD;
        }
      }
      qps[reply.number] = qp;
      return "";
    }
    case Verb::kOpenQp:
      if (reply.number != action.number) return "another QP was opened";
      handles[id] = {side, reply.number, action.xrcd};
      ++qps.at(reply.number).handles;
      ++xrcds.at(action.xrcd).users;
      return "";
    default:
      ahs[id] = {side, action.pd, action.flag};
      ++pds.at(action.pd).users;
      return "";
  }
}

int Model::end(const Action& action) {
  const uint32_t id = action.id;
  switch (action.verb) {
    case Verb::kDeallocPd:
      if (pds.at(id).users != 0) return EBUSY;
      pds.erase(id);
      return 0;
    case Verb::kDeregMr:
      --pds.at(mrs.at(id).pd).users;
      mrs.erase(id);
      return 0;
    case Verb::kDestroyCq:
      if (cqs.at(id).users != 0) return EBUSY;
      cqs.erase(id);
      return 0;
    case Verb::kCloseXrcd:
      if (xrcds.at(id).users != 0) return EBUSY;
      xrcds.erase(id);
      return 0;
    case Verb::kDestroySrq: {
      SharedQueue& srq = srqs.at(id);
      if (srq.users != 0) return EBUSY;
      --pds.at(srq.pd).users;
      if (srq.xrcd != 0) {
        --xrcds.at(srq.xrcd).users;
        Completions& cq = cqs.at(srq.cq);
        --cq.users;
        for (auto& [key, stream] : cq.streams)
          std::erase_if(stream,
                        [id](const Expected& one) { return one.limited == id && !one.consumed; });
      }
      std::erase_if(events_[srq.side], [id](const auto& event) {
        return event.first == IBV_EVENT_SRQ_LIMIT_REACHED && event.second == id;
      });
      srqs.erase(id);
      return 0;
    }
    case Verb::kDestroyQp: {
      const Handle handle = handles.at(id);
      handles.erase(id);
      QueuePair& qp = qps.at(handle.number);
      if (handle.xrcd != 0) --xrcds.at(handle.xrcd).users;
      if (--qp.handles != 0) return 0;
      if (qp.owned()) {
        reset(qp);
        --pds.at(qp.pd).users;
        --cqs.at(qp.send_cq).users;
        if (qp.recv_cq != 0) --cqs.at(qp.recv_cq).users;
        if (qp.srq != 0) --srqs.at(qp.srq).users;
      }
      std::erase_if(events_[handle.side], [&](const auto& event) {
        return event.first != IBV_EVENT_SRQ_LIMIT_REACHED && event.second == handle.number;
      });
      qps.erase(handle.number);
      return 0;
    }
    case Verb::kDestroyAh:
      --pds.at(ahs.at(id).pd).users;
      ahs.erase(id);
      return 0;
    default: {
      const auto left = [&](const auto& objects) {
        return std::any_of(objects.begin(), objects.end(),
                           [&](const auto& one) { return one.second.side == action.side; });
      };
      return left(pds) || left(mrs) || left(cqs) || left(xrcds) || left(srqs) || left(handles) ||
                     left(ahs)
                 ? EBUSY
                 : 0;
    }
  }
}

int Model::post_send(const Action& action, uint32_t* taken) {
  QueuePair& qp = qps.at(handles.at(action.id).number);
  if (!qp.owned()) return EINVAL;
  int error = 0;
  for (*taken = 0; *taken < action.count; ++*taken) {
    QueuePair::Waiting work;
    work.wr = action.wrs[*taken];
    const Wr& wr = work.wr;
    if (!service_has(qp.type, wr.opcode) || wr.count > qp.max_send_sge) return EINVAL;
    if ((wr.flags & IBV_SEND_INLINE) != 0) {
      uint32_t sum = 0;
      for (uint32_t i = 0; i < wr.count; ++i) sum += wr.pieces[i].length;
      if (fetches(wr.opcode) || sum > qp.max_inline) return EINVAL;
      for (uint32_t i = 0; i < wr.count; ++i) {
        const uint8_t* at = memory(qp.side, wr.pieces[i].address);
        work.inline_data.emplace_back(at, at + wr.pieces[i].length);
      }
    }
    if (qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_SQE) {
      complete(qp, wr, {IBV_WC_WR_FLUSH_ERR});
      continue;
    }
    if (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_SQD) return EINVAL;
    if (qp.waiting.empty() && qp.state == IBV_QPS_RTS && !start(qp, work)) continue;
    if (qp.waiting.size() == qp.max_send_wr) {
      error = ENOMEM;
      break;
    }
    qp.waiting.push_back(work);
    set_waiting(qp, true);
  }
  return error;
}

int Model::post_recv(const Action& action, uint32_t* taken) {
  Queue* queue = nullptr;
  uint32_t queue_id = action.srq;
  if (action.srq != 0) {
    queue = &srqs.at(action.srq).queue;
  } else {
    QueuePair& qp = qps.at(handles.at(action.id).number);
    if (!qp.own) return EINVAL;
    queue_id = own_queue(qp.number);
    queue = &*qp.own;
    if (qp.state == IBV_QPS_RESET) return EINVAL;
    if (qp.state == IBV_QPS_ERR) {
      for (*taken = 0; *taken < action.count; ++*taken) {
        Expected flushed;
        flushed.wr_id = action.wrs[*taken].wr_id;
        flushed.status = IBV_WC_WR_FLUSH_ERR;
        expect(qp.recv_cq, qp.number, 0, true, flushed);
      }
      return 0;
    }
  }
  ++queue->postings;
  for (*taken = 0; *taken < action.count; ++*taken) {
    const Wr& wr = action.wrs[*taken];
    if (queue->in_use == queue->max_wr) return ENOMEM;
    if (wr.count > queue->max_sge) return EINVAL;
    ++queue->in_use;
    queue->posted.push_back({wr.wr_id, {wr.pieces, wr.pieces + wr.count}});
    Open open = {queue_id, queue->side, wr.remote, {}};
    for (uint32_t i = 0; i < wr.count; ++i) open.keys.insert(wr.pieces[i].key);
    open_[wr.wr_id] = open;
    if (open.slot != 0) slots_.insert({open.side, open.slot});
  }
  return 0;
}

std::string Model::poll(const Action& action, const Reply& reply) {
  Completions& cq = cqs.at(action.id);
  looks.clear();
  for (uint32_t i = 0; i < reply.count; ++i) {
    const Done& done = reply.done[i];
    const bool received = (done.wr_id & kReceive) != 0;
    const bool flushed = done.status == IBV_WC_WR_FLUSH_ERR;
    const std::tuple key = {done.qp_num, received && !flushed ? done.src_qp : 0, received};
    const auto found = cq.streams.find(key);
    const std::string which =
        base::format("completion %u: wr_id %llx status %d opcode %d byte_len %u qp %x from %x: ", i,
                     static_cast<unsigned long long>(done.wr_id), done.status, done.opcode,
                     done.byte_len, done.qp_num, done.src_qp);
    if (found == cq.streams.end()) return which + "nothing was to come there";
    Expected one = found->second.front();
    consume(one);
    found->second.pop_front();
    if (found->second.empty()) cq.streams.erase(found);
    if (done.status != one.status) return which + base::format("status %d expected", one.status);
    if (flushed && received) {
      for (const auto& [other, stream] : cq.streams)
        if (std::get<0>(other) == done.qp_num && std::get<2>(other) && std::get<1>(other) != 0)
          return which + "flushed before what had arrived";
    }
    if (one.queue == 0 && done.wr_id != one.wr_id)
      return which +
             base::format("wr_id %llx expected", static_cast<unsigned long long>(one.wr_id));
    const auto open = open_.find(done.wr_id);
    if (one.queue != 0 && (open == open_.end() || open->second.queue != one.queue))
      return which + "not a receive of that queue, or completed before";
    if (one.queue != 0 && flushed) {
      uint64_t& last = last_flush_[one.queue];
      if (done.wr_id < last) return which + "flushed out of order";
      last = done.wr_id;
    }
    if (open != open_.end()) {
      if (one.status == IBV_WC_SUCCESS && one.data && !one.data->empty())
        looks.push_back({open->second.slot + one.skip, *one.data});
      forget_receive(done.wr_id);
    }
    if (one.status != IBV_WC_SUCCESS) continue;
    if (done.opcode != one.opcode) return which + base::format("opcode %d expected", one.opcode);
    if (one.byte_len && done.byte_len != *one.byte_len)
      return which + base::format("byte_len %u expected", *one.byte_len);
    const bool immediate = (done.flags & IBV_WC_WITH_IMM) != 0;
    if (immediate != one.imm.has_value() || (immediate && done.imm != *one.imm))
      return which + "the immediate is wrong";
    if (((done.flags & IBV_WC_GRH) != 0) != one.global) return which + "the GRH flag is wrong";
  }
  const uint32_t left = cq.pending();
  if (reply.count < kBatch && left != 0)
    return base::format("the CQ gave %u, and %u more were to come", reply.count, left);
  if (reply.count < kBatch) cq.rings = 0;
  return "";
}

std::string Model::events(const Action& action, const Reply& reply) {
  auto& expected = events_[action.side];
  for (uint32_t i = 0; i < reply.count; ++i) {
    const auto found = expected.find({reply.events[i].type, reply.events[i].number});
    if (found == expected.end())
      return base::format("event %s of %x was not to come",
                          ibv_event_type_str(static_cast<ibv_event_type>(reply.events[i].type)),
                          reply.events[i].number);
    expected.erase(found);
  }
  if (expected.empty() || reply.count == std::size(reply.events)) return "";
  return base::format("event %s of %x did not come",
                      ibv_event_type_str(static_cast<ibv_event_type>(expected.begin()->first)),
                      expected.begin()->second);
}

std::string Model::apply(const Action& action, const Reply& reply) {
  int error = 0;
  uint32_t taken = 0;
  switch (action.verb) {
    case Verb::kAllocPd:
    case Verb::kRegMr:
    case Verb::kCreateCq:
    case Verb::kOpenXrcd:
    case Verb::kCreateSrq:
    case Verb::kCreateQp:
    case Verb::kCreateAh:
      if (reply.error == 0) return create(action, reply);
      break;
    case Verb::kOpenQp: {
      const auto found = qps.find(action.number);
      const Domain& domain = xrcds.at(action.xrcd);
      if (found == qps.end() || found->second.owned() ||
          found->second.domain != (domain.is_private ? action.xrcd : 0)) {
        error = EINVAL;
      } else if (reply.error == 0) {
        return create(action, reply);
      }
      break;
    }
    case Verb::kDeallocPd:
    case Verb::kDeregMr:
    case Verb::kDestroyCq:
    case Verb::kCloseXrcd:
    case Verb::kDestroySrq:
    case Verb::kDestroyQp:
    case Verb::kDestroyAh:
    case Verb::kClose:
      error = end(action);
      break;
    case Verb::kResizeCq:
      error = action.number == 0 ? EINVAL : 0;
      break;
    case Verb::kLimitSrq: {
      Queue& queue = srqs.at(action.id).queue;
      if (action.number > queue.max_wr) {
        error = EINVAL;
      } else {
        queue.limit = action.number;
        if (queue.limit != 0 && queue.in_use < queue.limit) {
          queue.limit = 0;
          raise(queue.side, IBV_EVENT_SRQ_LIMIT_REACHED, action.id);
        }
      }
      break;
    }
    case Verb::kModifyQp:
      error = modify(action);
      break;
    case Verb::kPostRecv:
    case Verb::kPostSend:
      error =
          action.verb == Verb::kPostSend ? post_send(action, &taken) : post_recv(action, &taken);
      if (error == reply.error && taken != reply.number)
        return base::format("%u of the list were taken, %u expected", reply.number, taken);
      break;
    case Verb::kPoll:
      if (reply.error == 0) return poll(action, reply);
      break;
    case Verb::kProgress:
      std::copy(std::begin(reply.bases), std::end(reply.bases), bases[action.side]);
      break;
    case Verb::kFill:
      fill(memory(action.side, action.address), action.length, action.iova);
      break;
    case Verb::kRead:
      break;
    case Verb::kHash:
      if (reply.value != hash_of(action.side)) return "memory is not as it should be";
      break;
    case Verb::kEvents:
      return events(action, reply);
  }
  if (error != reply.error)
    return base::format("error %d (%s), %d expected", reply.error, strerror(reply.error), error);
  return "";
}

}  // namespace millrace::test::walk
