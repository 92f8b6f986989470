#include "transport/steering.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <utility>

#include "verbs/open.h"

namespace millrace::transport {
namespace {

constexpr uint32_t kQueueBits = 16;
constexpr uint32_t kMaxQueues = 1u << kQueueBits;
constexpr uint32_t kCqe = 32768;

/** Puts the counters in the place of the COUNT action's pointer. False: sizes that don't add up. */
bool put_counters(std::vector<uint8_t>* attr, ibv_counters* counters) {
  if (attr->size() < sizeof(ibv_flow_attr)) return false;
  size_t at = sizeof(ibv_flow_attr);
  while (at < attr->size()) {
    uint32_t type;
    uint16_t size;
    if (attr->size() - at < sizeof(type) + sizeof(size)) return false;
    memcpy(&type, attr->data() + at, sizeof(type));
    memcpy(&size, attr->data() + at + sizeof(type), sizeof(size));
    if (size < sizeof(type) + sizeof(size) || size > attr->size() - at) return false;
    if (type == IBV_FLOW_SPEC_ACTION_COUNT) {
      if (size != sizeof(ibv_flow_spec_counter_action)) return false;
      memcpy(attr->data() + at + offsetof(ibv_flow_spec_counter_action, counters), &counters,
             sizeof(counters));
    }
    at += size;
  }
  return true;
}

/** 0 stops it, and takes back that it has gone off. */
bool set_timer(int fd, uint32_t micros) {
  itimerspec spec = {};
  spec.it_value.tv_sec = micros / 1'000'000;
  spec.it_value.tv_nsec = static_cast<long>(micros % 1'000'000) * 1000;
  return timerfd_settime(fd, 0, &spec, nullptr) == 0;
}

int destroy_flow_of(ibv_flow* flow) { return ibv_destroy_flow(flow); }
int destroy_counters_of(ibv_counters* counters) { return ibv_destroy_counters(counters); }
using FlowPtr = verbs::Owner<ibv_flow, destroy_flow_of>;
using CountersPtr = verbs::Owner<ibv_counters, destroy_counters_of>;

}  // namespace

struct Steering::Queue {
  uint32_t number = 0;
  base::Mapping memory;
  verbs::MrPtr mr;
  verbs::QpPtr qp;
};

struct Steering::Flow {
  std::string group;
  CountersPtr counters;
  FlowPtr flow;  ///< goes first: flows keep their counters
};

Steering::Steering(const SteeringOptions& options) : options_(options) {}
Steering::~Steering() { close(); }

base::Result<std::unique_ptr<Steering>> Steering::open(const SteeringOptions& options) {
  std::unique_ptr<Steering> steering(new Steering(options));
  if (base::Status status = steering->start(); !status.ok()) return status;
  return steering;
}

base::Status Steering::start() {
  fed_ = options_.device.starts_with("soft");
  found_ = true;  // not armed yet
  base::Result<ibv_context*> opened = verbs::open_device(
      fed_ ? "soft@" + (options_.interface.empty() ? std::string("*") : options_.interface)
           : options_.device);
  if (!opened.ok()) return opened.status();
  context_ = verbs::ContextPtr(opened.value());
  subscriptions_ = std::make_unique<Subscriptions>(
      options_.interface.empty() ? 0 : if_nametoindex(options_.interface.c_str()));
  pd_ = verbs::PdPtr(ibv_alloc_pd(context_.get()));
  if (!pd_) return failed("ibv_alloc_pd", errno);
  channel_ = verbs::ChannelPtr(ibv_create_comp_channel(context_.get()));
  if (!channel_) return failed("ibv_create_comp_channel", errno);
  const int flags = fcntl(channel_->fd, F_GETFL);
  if (flags < 0 || fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return base::Status::error(errno, "fcntl");
  ibv_cq_init_attr_ex attr = {};
  attr.cqe = kCqe;
  attr.channel = channel_.get();
  attr.wc_flags = uint64_t{IBV_WC_EX_WITH_BYTE_LEN} | IBV_WC_EX_WITH_FLOW_TAG;
  attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
  cq_ex_ = ibv_create_cq_ex(context_.get(), &attr);
  if (cq_ex_ == nullptr) return failed("ibv_create_cq_ex", errno);
  cq_ = verbs::CqPtr(ibv_cq_ex_to_cq(cq_ex_));
  return open_poll_set();
}

base::Status Steering::open_poll_set() {
  timer_ = base::Fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_.valid()) return base::Status::error(errno, "timerfd_create");
  poll_set_ = base::Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!poll_set_.valid()) return base::Status::error(errno, "epoll_create1");
  for (const int fd : {timer_.get(), channel_->fd}) {
    epoll_event event = {};
    event.events = EPOLLIN;
    if (epoll_ctl(poll_set_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      return base::Status::error(errno, "epoll_ctl");
  }
  return base::Status::success();
}

void Steering::close() {
  flows_.clear();
  queues_.clear();
  poll_set_.reset();
  timer_.reset();
  cq_.close();
  channel_.close();
  pd_.close();
  context_.close();
  subscriptions_.reset();
}

base::Status Steering::failed(const char* call, int error) const {
  return verbs::call_error(context_.get(), call, error);
}

Steering::Queue* Steering::find(uint32_t queue) const {
  return queue < queues_.size() ? queues_[queue].get() : nullptr;
}

int Steering::post(Queue& queue, uint32_t slot) {
  ibv_sge sge = {};
  sge.addr = reinterpret_cast<uintptr_t>(queue.memory.data()) + size_t{slot} * options_.frame_bytes;
  sge.length = options_.frame_bytes;
  sge.lkey = queue.mr->lkey;
  ibv_recv_wr wr = {};
  wr.wr_id = uint64_t{slot} << kQueueBits | queue.number;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(queue.qp.get(), &wr, &bad);
}

base::Status Steering::register_memory(Queue& queue, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return base::Status::error(errno, "mmap");
  queue.memory = base::Mapping(memory, bytes);
  queue.mr = verbs::MrPtr(ibv_reg_mr(pd_.get(), memory, bytes, IBV_ACCESS_LOCAL_WRITE));
  return queue.mr ? base::Status::success() : failed("ibv_reg_mr", errno);
}

base::Result<uint32_t> Steering::open_queue(bool delivers) {
  auto place = std::find(queues_.begin(), queues_.end(), nullptr);
  if (place == queues_.end()) {
    if (queues_.size() == kMaxQueues)
      return base::Status::error(ENOBUFS, "open a queue", "all 65536 queues are open");
    place = queues_.insert(place, nullptr);
  }
  auto queue = std::make_unique<Queue>();
  queue->number = static_cast<uint32_t>(place - queues_.begin());
  const uint32_t receives = delivers ? options_.receives : 0;
  if (delivers) {
    base::Status status = register_memory(*queue, size_t{receives} * options_.frame_bytes);
    if (!status.ok()) return status;
  }
  ibv_qp_init_attr init = {};
  init.qp_type = IBV_QPT_RAW_PACKET;
  init.send_cq = init.recv_cq = cq_.get();
  init.cap.max_send_wr = init.cap.max_send_sge = 1;
  init.cap.max_recv_wr = std::max(receives, 1u);  // adapters steer to no QP without any
  init.cap.max_recv_sge = 1;
  queue->qp = verbs::QpPtr(ibv_create_qp(pd_.get(), &init));
  if (!queue->qp) return failed("ibv_create_qp", errno);
  ibv_qp_attr attr = {};
  attr.port_num = 1;
  attr.qp_state = IBV_QPS_INIT;
  if (const int error = ibv_modify_qp(queue->qp.get(), &attr, IBV_QP_STATE | IBV_QP_PORT);
      error != 0)
    return failed("ibv_modify_qp", error);
  for (uint32_t slot = 0; slot < receives; ++slot) {
    if (const int error = post(*queue, slot); error != 0) return failed("ibv_post_recv", error);
  }
  attr.qp_state = IBV_QPS_RTR;
  if (const int error = ibv_modify_qp(queue->qp.get(), &attr, IBV_QP_STATE); error != 0)
    return failed("ibv_modify_qp", error);
  *place = std::move(queue);
  return static_cast<uint32_t>(place - queues_.begin());
}

base::Status Steering::close_queue(uint32_t number) {
  Queue* queue = find(number);
  if (queue == nullptr) return base::Status::success();
  if (const int error = queue->qp.close(); error != 0) return failed("ibv_destroy_qp", error);
  queues_[number].reset();
  return base::Status::success();
}

base::Result<uint32_t> Steering::create_flow(uint32_t number, std::span<const uint8_t> bytes) {
  Queue* queue = find(number);
  if (queue == nullptr) return base::Status::error(EINVAL, "create a flow", "no such queue");
  auto flow = std::make_unique<Flow>();
  ibv_counters_init_attr none = {};
  flow->counters = CountersPtr(ibv_create_counters(context_.get(), &none));
  if (!flow->counters) return failed("ibv_create_counters", errno);
  ibv_counter_attach_attr point = {};
  for (const ibv_counter_description what : {IBV_COUNTER_PACKETS, IBV_COUNTER_BYTES}) {
    point.counter_desc = what;
    if (const int error = ibv_attach_counters_point_flow(flow->counters.get(), &point, nullptr);
        error != 0)
      return failed("ibv_attach_counters_point_flow", error);
    ++point.index;
  }
  std::vector<uint8_t> attr(bytes.begin(), bytes.end());
  if (!put_counters(&attr, flow->counters.get()))
    return base::Status::error(EINVAL, "create a flow", "the sizes of its specs don't add up");
  base::Result<std::string> group = subscriptions_->add(attr);
  if (!group.ok()) return group.status();
  flow->group = group.take();
  flow->flow =
      FlowPtr(ibv_create_flow(queue->qp.get(), reinterpret_cast<ibv_flow_attr*>(attr.data())));
  if (!flow->flow) {
    base::Status status = failed("ibv_create_flow", errno);
    subscriptions_->remove(flow->group);
    return status;
  }
  const uint32_t made = next_flow_++;
  flows_.emplace(made, std::move(flow));
  return made;
}

void Steering::destroy_flow(uint32_t number) {
  const auto found = flows_.find(number);
  if (found == flows_.end()) return;
  const std::unique_ptr<Flow> flow = std::move(found->second);
  flows_.erase(found);
  flow->flow.close();
  subscriptions_->remove(flow->group);
}

FlowCount Steering::read_flow(uint32_t number) const {
  const auto found = flows_.find(number);
  uint64_t values[2] = {};
  if (found == flows_.end() || ibv_read_counters(found->second->counters.get(), values, 2,
                                                 IBV_READ_COUNTERS_ATTR_PREFER_CACHED) != 0)
    return {};
  return {values[0], values[1]};
}

uint32_t Steering::poll(FrameSink& sink, uint32_t max) {
  ibv_poll_cq_attr attr = {};
  uint32_t taken = 0;
  if (max == 0 || !sink.ready() || ibv_start_poll(cq_ex_, &attr) != 0) return 0;
  do {
    Queue* queue = find(static_cast<uint32_t>(cq_ex_->wr_id & (kMaxQueues - 1)));
    const auto slot = static_cast<uint32_t>(cq_ex_->wr_id >> kQueueBits);
    if (queue == nullptr || !queue->mr || slot >= options_.receives) continue;
    if (cq_ex_->status == IBV_WC_SUCCESS) {
      SteeredFrame frame;
      frame.queue = queue->number;
      frame.tag = ibv_wc_read_flow_tag(cq_ex_);
      frame.checked = (ibv_wc_read_wc_flags(cq_ex_) & IBV_WC_IP_CSUM_OK) != 0;
      frame.bytes = {reinterpret_cast<const uint8_t*>(queue->memory.data()) +
                         size_t{slot} * options_.frame_bytes,
                     std::min(ibv_wc_read_byte_len(cq_ex_), options_.frame_bytes)};
      sink.take(frame);
      ++taken;
    } else {
      ++failed_;
    }
    (void)post(*queue, slot);
  } while (taken < max && sink.ready() && ibv_next_poll(cq_ex_) == 0);
  ibv_end_poll(cq_ex_);
  found_ = true;
  return taken;
}

bool Steering::watch_channel(bool on) {
  epoll_event event = {};
  event.events = on ? EPOLLIN : 0u;
  return epoll_ctl(poll_set_.get(), EPOLL_CTL_MOD, channel_->fd, &event) == 0;
}

bool Steering::rest(uint32_t micros) {
  if (!resting_ && !watch_channel(false)) return false;
  resting_ = true;
  return set_timer(timer_.get(), micros);
}

bool Steering::arm() {
  if (resting_) {
    set_timer(timer_.get(), 0);
    if (!watch_channel(true)) return false;
    resting_ = false;
  }
  const bool found = std::exchange(found_, false);
  // A port that a network interface feeds is readable while frames wait, armed or not. Then only
  // what else woke us has to be taken away, which may bring frames into the CQ, as a poll does.
  if (fed_ && (found || std::exchange(drained_, false))) return true;
  ibv_cq* cq = nullptr;
  void* unused = nullptr;
  unsigned events = 0;
  while (ibv_get_cq_event(channel_.get(), &cq, &unused) == 0) ++events;
  if (events != 0) ibv_ack_cq_events(cq_.get(), events);
  if (fed_) {
    drained_ = true;
    return false;
  }
  // Armed before, and nothing has come since.
  if (!found && events == 0) return true;
  // What came before the arming is for one more look (R7).
  return ibv_req_notify_cq(cq_.get(), 0) != 0;
}

}  // namespace millrace::transport
