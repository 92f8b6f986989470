#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/handshake.h"
#include "transport/lane.h"
#include "transport/port.h"
#include "verbs/owners.h"

namespace millrace::transport {

/** What lanes are made from; all of it outlives them. */
struct LaneParts {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* receive_cq = nullptr;
  Arena* arena = nullptr;
  int folder = -1;    ///< of the domain: its inode is the XRC domain's key
  uint64_t seed = 0;  ///< of packet sequence numbers
};

/** The SRQ of an inbox. */
struct InboxQueue {
  verbs::SrqPtr srq;
  uint32_t number = 0;  ///< by which others name it; 0 for a basic one, which nobody can name
};

/**
 * A member's lanes. The kind follows from the device and never changes (XRC where there is, else
 * RC); what the kinds do differently is behind this class and Wire, and nowhere else.
 *
 * A lane *number* is what a member opens and names in its rows: 0 is the shared one. With XRC a
 * number is one Lane, which leads to everybody on the host. With RC it is one Lane for each peer,
 * which comes up by an ask (handshake.h): the peer makes the target QP, collects what had landed of
 * an earlier one, and answers with the target's number and the last frame that it has. So a lane's
 * first connection, its re-arm and a lane number that is opened late are the same exchange.
 */
class Lanes {
 public:
  /** What becomes of a lane that went down and was drained. */
  enum class Revival : uint8_t {
    kUp,      ///< it is up again
    kFailed,  ///< it is not; to be tried again
    kAsk,     ///< when the peer has answered
    kGone,    ///< it was of a peer that is gone, and does not exist any more
  };

  /** Of the kind that the device has. Errors: EOPNOTSUPP (it has neither XRC nor RC with SRQs),
   * those of the queries and of ibv_open_xrcd. */
  static base::Result<std::unique_ptr<Lanes>> create(const LaneParts& parts);
  virtual ~Lanes() = default;
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  virtual LaneKind kind() const = 0;
  const Port& port() const { return port_; }

  /** Makes the inbox's SRQ for `max_wr` posted slots; its completions go to the receive CQ. Once.
   */
  virtual base::Result<InboxQueue> create_queue(uint32_t max_wr) = 0;

  /** Opens a lane number that is not open. */
  virtual base::Status open(uint32_t number) = 0;
  bool is_open(uint32_t number) const { return (open_ & (1u << number)) != 0; }
  uint32_t open_count() const { return static_cast<uint32_t>(__builtin_popcount(open_)); }
  /** Whether nothing is outstanding on that number. */
  virtual bool idle(uint32_t number) const = 0;
  /** Closes an idle number. */
  virtual void close(uint32_t number) = 0;

  /** Every lane there is, those of peers that are gone and that drain included. */
  std::span<Lane* const> all() const { return all_; }
  /** The lane that leads to a peer, or null: see reach(). */
  virtual Lane* to(uint32_t peer, uint32_t number) const = 0;
  /** As to(), and makes it if need be; it may be not up yet. */
  virtual base::Result<Lane*> reach(uint32_t peer, uint32_t generation, uint32_t number) = 0;

  /** After quiesce() and when its doubtful WRs have been taken. */
  virtual Revival revive(Lane& lane) = 0;
  /** What an ask says of the lane: the initiator and its PSN; zeros where the peer need not know.
   */
  virtual QpInfo asking(const Lane& lane) const = 0;
  /** The peer has answered with its target: the lane comes up, if it was not. */
  virtual base::Status answered(Lane& lane, const Address& remote, const QpInfo& target) = 0;

  // The other end: lanes of peers that lead to us.

  /** A peer asks about its lane: nothing of that lane's old connection lands after this. `ask` is
   * the number of the ask; a repeated one changes nothing. */
  virtual void quiesce(uint32_t peer, uint32_t number, uint64_t ask) = 0;
  /** What an answer to that ask says: the target, made now unless the ask is a repeated one.
   * Errors: EPROTO (the ask lacks what it takes), of the verbs. */
  virtual base::Result<QpInfo> accept(uint32_t peer, uint32_t number, uint64_t ask,
                                      const Address& remote, const QpInfo& initiator) = 0;

  /** Which lane of which peer a QP of ours receives for. */
  struct Origin {
    int32_t peer = kAnybody;
    uint32_t number = 0;
    bool operator==(const Origin&) const = default;
  };
  /** With XRC, where the target of a lane is its sender's own, and we are not told its number. */
  static constexpr int32_t kAnybody = -2;
  /** The QP's peer is gone, or there never was such a QP. */
  static constexpr int32_t kNobody = -1;
  /** Of a QP that the receive CQ names. What a frame's header says of its sender is worth no more
   * than this (I9). */
  virtual Origin origin(uint32_t qp_number) const = 0;

  /**
   * Targets that were replaced, or whose peer is gone, are in ERR and give back the receives that
   * they had taken in their own time: when IBV_EVENT_QP_LAST_WQE_REACHED has come, all of them are
   * completions of the receive CQ, and once that was emptied the QP can go (ibv_modify_qp(3)).
   * True: some have reached that point, so collect everything and then call bury(). Not every
   * device tells (rxe does not): then it is kRetireNs after they were retired. `now_ns` is
   * monotonic.
   */
  virtual bool retire(uint64_t now_ns) = 0;
  static constexpr uint64_t kRetireNs = 2'000'000'000;
  virtual void bury() = 0;

  /** The peer is gone: its lanes drain and then go, those that led to us end. */
  virtual void part(uint32_t peer) = 0;
  /** Drains and destroys all QPs, before the inbox goes. */
  virtual void shut() = 0;

  virtual uint32_t queue_pairs() const = 0;

 protected:
  Lanes(const LaneParts& parts, const Port& port) : parts_(parts), port_(port) {}
  void remember(Lane* lane) { all_.push_back(lane); }
  void forget(Lane* lane);

  const LaneParts parts_;
  const Port port_;
  uint32_t open_ = 0;  ///< bit per number

 private:
  std::vector<Lane*> all_;
};

/** The kinds, one file each. */
base::Result<std::unique_ptr<Lanes>> create_xrc_lanes(const LaneParts& parts, const Port& port);
base::Result<std::unique_ptr<Lanes>> create_rc_lanes(const LaneParts& parts, const Port& port);

}  // namespace millrace::transport
