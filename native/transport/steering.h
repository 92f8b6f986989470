#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/status.h"
#include "transport/subscriptions.h"
#include "verbs/owners.h"

namespace millrace::transport {

/** Where frames are steered from. */
struct SteeringOptions {
  /** `soft`, whose port is attached to the interface, or the name of an RDMA device. */
  std::string device = "soft";
  std::string interface;  ///< of the network; empty: all of them, groups by the kernel's routes
  uint32_t frame_bytes = 9216;  ///< the longest frame; longer ones are an error of their receive
  uint32_t receives = 128;      ///< of each queue
};

/** A frame that a rule took. */
struct SteeredFrame {
  uint32_t queue = 0;
  uint32_t tag = 0;                ///< of the rule; 0: it has none
  bool checked = false;            ///< its checksums are right
  std::span<const uint8_t> bytes;  ///< until take() returns
};

/** Who takes frames out of the queues. */
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  /** Whether there is room for one more, of any length. */
  virtual bool ready() = 0;
  virtual void take(const SteeredFrame& frame) = 0;
};

/** What a flow did. */
struct FlowCount {
  uint64_t packets = 0;
  uint64_t bytes = 0;
};

/**
 * One port as rules use it: for each channel a RAW_PACKET QP of its own with its receives, all into
 * one CQ, and the flows that lead there. Calls only ibv_* names, so an adapter does the same. One
 * thread (I6); no call waits.
 */
class Steering {
 public:
  /** Errors: of opening the device (ENODEV, EPERM without CAP_NET_RAW) and of its objects. */
  static base::Result<std::unique_ptr<Steering>> open(const SteeringOptions& options);
  ~Steering();
  Steering(const Steering&) = delete;
  /** Destroys all. Idempotent. */
  void close();

  /**
   * A queue with its receives posted. `delivers`: false for rules that drop or count, whose frames
   * nobody wants: it has neither receives nor memory for them. Errors: of the device.
   */
  base::Result<uint32_t> open_queue(bool delivers);
  /** What has come for it and was not taken is lost. Needs its flows gone: else EBUSY. */
  base::Status close_queue(uint32_t queue);

  /**
   * Leads what matches to a queue. `attr`: ibv_flow_attr with its specs; the counters of a COUNT
   * action are put in place. First joins the group that it names, see Subscriptions. Errors:
   * EINVAL for bytes that don't add up, those of joining and of ibv_create_flow(); then nothing was
   * made.
   */
  base::Result<uint32_t> create_flow(uint32_t queue, std::span<const uint8_t> attr);
  /** Idempotent. */
  void destroy_flow(uint32_t flow);
  /** Zero for one that is gone. */
  FlowCount read_flow(uint32_t flow) const;

  /** Takes at most `max` frames, while the sink is ready. @return how many. */
  uint32_t poll(FrameSink& sink, uint32_t max);
  /** Arms the CQ and looks again (R7). True: nothing is pending, sleep on fd(). False: poll, and
   * arm again. */
  bool arm();
  /**
   * In place of arm(): fd() becomes readable once this time is over, whatever comes meanwhile, and
   * nothing is woken before. For the moderation of a stream that never ends. Any device. False: the
   * system refused; arm() then.
   */
  bool rest(uint32_t micros);
  /** Readable after arm() or rest(). */
  int fd() const { return poll_set_.get(); }

  ibv_context* context() const { return context_.get(); }
  uint32_t frame_bytes() const { return options_.frame_bytes; }
  /** Receives that failed: frames that were too long. */
  uint64_t failed() const { return failed_; }
  size_t subscriptions() const { return subscriptions_ ? subscriptions_->size() : 0; }

 private:
  struct Queue;
  struct Flow;
  using QueuePtr = std::unique_ptr<Queue>;

  explicit Steering(const SteeringOptions& options);
  base::Status start();
  base::Status open_poll_set();
  bool watch_channel(bool on);
  /** A verbs call that failed, with the device's reason. */
  base::Status failed(const char* call, int error) const;
  Queue* find(uint32_t queue) const;
  base::Status register_memory(Queue& queue, size_t bytes);
  int post(Queue& queue, uint32_t slot);

  SteeringOptions options_;
  std::unique_ptr<Subscriptions> subscriptions_;
  verbs::ContextPtr context_;
  verbs::PdPtr pd_;
  verbs::ChannelPtr channel_;
  verbs::CqPtr cq_;
  base::Fd timer_;     ///< of rest()
  base::Fd poll_set_;  ///< the channel, unless we rest, and the timer
  ibv_cq_ex* cq_ex_ = nullptr;
  std::vector<QueuePtr> queues_;  ///< by number; null: closed
  std::map<uint32_t, std::unique_ptr<Flow>> flows_;
  uint32_t next_flow_ = 1;
  uint64_t failed_ = 0;
  bool fed_ = false;      ///< by a network interface: the software device
  bool found_ = false;    ///< something was polled since arm()
  bool drained_ = false;  ///< events were taken away since a poll found nothing
  bool resting_ = false;
};

}  // namespace millrace::transport
