#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "verbs/faults.h"

namespace millrace::transport {

inline constexpr uint32_t kSendRows = 4096;     ///< rows of `sends`
inline constexpr uint32_t kSendStride = 4;      ///< int32 numbers a row: peer, offset, length, lane
inline constexpr uint32_t kEventRows = 1024;    ///< rows of `events`
inline constexpr uint32_t kEventStride = 8;     ///< int32 numbers a row: kind, peer, a..f
inline constexpr uint32_t kCounters = 32;       ///< doubles in `counters`
inline constexpr uint32_t kMaxPeers = 1024;     ///< rows of `peers`
inline constexpr uint32_t kPeerStride = 8;      ///< doubles a row
inline constexpr uint32_t kMaxLanes = 32;       ///< lanes of a member, the shared one included
inline constexpr uint32_t kMinSlotBytes = 256;  ///< a header, a record header and some payload
inline constexpr uint32_t kMaxSlotBytes = 1 << 20;
inline constexpr uint32_t kMaxGroups = 1024;   ///< ends of multicast groups that a member may have
inline constexpr int32_t kGroupRow = -2;       ///< peer of a row whose lane is such an end
inline constexpr size_t kOfferBytes = 80;      ///< size of an offer blob
inline constexpr size_t kMaxTunnelBytes = 64;  ///< upper bound of a tunnel message

/** What linger() saw. */
enum class Lingered : uint32_t {
  kNothing = 0,
  kSomething = 1,  ///< something may be there: poll()
  kTaken = 2,      ///< other work had this CPU for long; what is there by now: poll()
};

/** How a member's lanes are made; on the wire. It follows from its device and never changes. */
enum class LaneKind : uint8_t {
  kXrc = 1,  ///< one queue pair leads to all members of a host
  kRc = 2,   ///< one leads to one member
};

/** Kinds of rows in `events`; the peer is -1 where none is concerned. */
enum class EventKind : int32_t {
  kFrame = 1,      ///< [offset, length, records, lane, seqLo, seqHi]
  kNeedRoom = 2,   ///< [bytes]: nothing was consumed, poll again with at least that much room
  kPeerFault = 3,  ///< [wcStatus, reason]
  kLane = 4,       ///< [lane, state]
  kTunnel = 5,     ///< [offset, length]: carry target[offset..] to that peer's tunnel()
  kDrained = 6,    ///< the backlog of this peer is empty again
  kFetch = 7,      ///< [number, end, doneLo, doneHi, wcStatus]: see fetch(); the peer is -1
  kDatagram = 16,  ///< [offset, length, records], of a multicast group
};

/** How a fetch ended, in a FETCH row. */
enum class FetchEnd : int32_t {
  kNone = 0,  ///< not yet: so far it has got
  kDone = 1,
  kFailed = 2,  ///< the peer's memory is not there, or the device failed again and again (wcStatus)
  kPeerLost = 3,   ///< the peer left or died
  kCancelled = 4,  ///< cancel_fetch()
};

/** Memory of a peer, as it told us. */
struct RemoteMemory {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t rkey = 0;
};

/** State in a LANE row. */
enum class LaneState : int32_t { kUp = 0, kDown = 1, kRearmed = 2 };

/** Reason in a PEER_FAULT row. */
enum class FaultReason : int32_t {
  kHeader = 1,   ///< a frame whose header is not valid (peer -1 where the sender can't be told)
  kRecords = 2,  ///< a frame whose records don't add up; its records were dropped
  kOrder = 3,    ///< a frame out of order, or a count that goes backwards; the frame was dropped
  kRow =
      4,  ///< our own `sends` row was not valid (bounds, alignment, lane, records); it was dropped
  kTooLarge = 5,  ///< a record is larger than this peer's slots; it was dropped
  kRefused =
      6,  ///< this peer's inbox failed again and again without progress: nothing more is sent to it
  kTunnel = 7,  ///< a tunnel message that is not valid
};

/** Indexes into `counters` (all cumulative but kBacklogBytes). */
enum Counter : uint32_t {
  kArenaFreed = 0,
  kFramesSent,
  kFramesReceived,
  kRecordsReceived,
  kCreditStalls,
  kWaitsSent,
  kRecalls,
  kDuplicates,
  kBadFrames,
  kErrorCompletions,
  kRearms,
  kRnr,
  kBacklogBytes,
  kPolls,
  kWakeups,
  kBytesSent,
  kBytesReceived,
  /**
   * Written by the user, read by flush(): the cumulative arena position below which nothing is
   * needed any more once this flush is done (usually the head). Below 0, as at the start: taken to
   * be the end of the last row seen, so that all rows of a record must be in one flush.
   */
  kArenaRelease = 17,
  kDatagramsSent = 18,
  kDatagramsReceived,
  kDatagramsLost,   ///< ours, that were not sent: too many under way, or an error
  kDatagramsStray,  ///< that came and were of no member or of another group
};

/** Columns of a row in `peers`. */
enum PeerColumn : uint32_t {
  /** All rows accepted before and including this count are in the peer's inbox (a prefix, over all
     lanes). */
  kRowsCompleted = 0,
  kRowsAccepted,
  kPeerBacklogBytes,
  kPeerCredits,
  kPeerGranted,
  kPeerFramesReceived,
  kPeerFramesLost,
};

/** Bits that flush() returns. */
enum FlushBits : uint32_t { kUnsent = 1, kProgress = 2 };

/** What a member is made of. */
struct MemberOptions {
  std::string device = "soft";
  std::string
      folder;  ///< registry folder of the domain; must exist; its inode is the XRC domain's key
  uint64_t incarnation = 0;        ///< of this member, > 0, never used again
  uint32_t slot_bytes = 16384;     ///< multiple of 8, 256 .. 1 MiB
  uint32_t slots = 128;            ///< to start with
  uint32_t max_slots = 4096;       ///< upper bound of the inbox; clamped to what the device can
  uint64_t arena_bytes = 4 << 20;  ///< multiple of the page size
  std::optional<verbs::FaultPlan> faults;
};

/**
 * Tables and arena of one member. The memory has stable addresses and lives as long as anyone holds
 * `owner`, so it may outlive the member (the device's registrations end with the member).
 */
struct Buffers {
  std::span<uint8_t> arena;
  std::span<int32_t> sends;
  std::span<int32_t> events;
  std::span<double> counters;
  std::span<double> peers;
  std::shared_ptr<void> owner;
};

/** What a peer needs in its connect(). */
struct Offer {
  uint32_t peer = 0;  ///< index that is reserved for that peer here
  std::array<uint8_t, kOfferBytes> bytes{};
};

/** What a member holds, counted. */
struct Resources {
  std::string device;              ///< its name
  std::string note;                ///< what choosing it had to say; "" if nothing
  LaneKind kind = LaneKind::kXrc;  ///< of its lanes
  uint32_t gid_index = 0;          ///< of the port's GID table
  /** Open lane numbers are `lanes`; with RC, each is a QP for each peer. */
  uint32_t pds = 0, xrcds = 0, srqs = 0, cqs = 0, qps = 0, mrs = 0, lanes = 0, slots = 0,
           slot_bytes = 0, peers = 0;
  uint64_t inbox_bytes = 0, arena_bytes = 0, backlog_bytes = 0;
  uint32_t groups = 0;       ///< ends of multicast groups, each with a UD QP and a CQ
  uint32_t group_slots = 0;  ///< posted for datagrams
  uint64_t group_bytes = 0;  ///< of those slots
};

/** What a group's address follows from: a hash of domain and channel. */
using GroupKey = std::array<uint8_t, 16>;

/** An end of a multicast group. */
struct OpenGroup {
  uint32_t number = 0;
  uint32_t room = 0;  ///< bytes of records that a datagram takes
};

/**
 * One member of a domain on this host: its inbox (one XRC SRQ), its lanes, its send arena and its
 * credits. Calls only ibv_* names. All calls are made by one thread at a time, always the same one
 * (I6); nothing here starts a thread, and no call waits (create and close may wait a bounded time
 * for the device's folder lock).
 *
 * Life: create, then for each peer offer() and, with the peer's own offer, connect(); flush() and
 * poll() from the event loop; arm() before sleeping on fd(). Nothing throws; faults of a peer
 * become rows in `events` (I9).
 */
class Member {
 public:
  /**
   * Opens the device, the XRC domain, the inbox with its files `i-<incarnation>.<k>` in the folder,
   * the shared lane and the arena. Errors carry the errno of the call that failed (ENOSPC, ENOMEM,
   * EINVAL with the option's name, ...).
   */
  static base::Result<std::unique_ptr<Member>> create(const MemberOptions& options);

  /** close() */
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /** QPs to ERR, drained, everything destroyed, own files unlinked. Idempotent; every later call
   * does nothing. */
  void close();

  /** The tables and the arena; the same at each call, also after close(). */
  const Buffers& buffers() const;

  /** Reserves a peer index with its slots. Errors: EMFILE (kMaxPeers), ENOSPC (inbox at max_slots,
   * or no memory). */
  base::Result<Offer> offer();

  /**
   * Connects a reserved index to the peer that made `offer`. What that peer sent meanwhile is
   * delivered by the next poll(). Errors: EPROTO (bad blob, or another incarnation's), EINVAL
   * (index not reserved), EEXIST.
   */
  base::Status connect(uint32_t peer, uint64_t incarnation, std::span<const uint8_t> offer);

  /**
   * That peer left or died: out of all lists, backlog dropped, its credits reclaimed once the inbox
   * has been drained (R12). Frames of it that are polled later are dropped: poll() until it returns
   * 0 before, to have them. Also releases an index that was only reserved. Idempotent.
   */
  void disconnect(uint32_t peer);

  /** A further QP pair; its number is >= 1. Errors: EMFILE (kMaxLanes), or the device's. */
  base::Result<uint32_t> open_lane();
  /** Closes an own lane when what was accepted on it has been sent; at once if nothing is. EINVAL
   * for lane 0 or unknown. */
  base::Status close_lane(uint32_t lane);

  /**
   * Opens an end of a multicast group: one that listens with so many slots, or, with 0, one that
   * sends (rows with kGroupRow in place of a peer and the number in place of the lane: one
   * datagram each, which may get lost). A datagram that finds no slot is lost, too; nothing else
   * waits for it or for its receiver. Errors: EMFILE (kMaxGroups), ENOSPC (the slots' file), of the
   * verbs.
   */
  base::Result<OpenGroup> open_group(const GroupKey& key, uint32_t slots);
  /** Closes it. What has arrived and was not polled is dropped. Nothing for a number that is not
   * open. */
  void close_group(uint32_t number);

  /**
   * Takes the first `rows` rows of `sends` (more than kSendRows are ignored) and posts what credits
   * allow; the rest is copied to the backlog of its destination, so that the arena never waits for
   * a slow peer. With 0 rows only the backlog is tried. Returns FlushBits.
   */
  uint32_t flush(uint32_t rows);

  /**
   * Takes at most `max_frames` frames out of the inbox, copies their records behind each other to
   * target[offset..] and writes rows to `events`. Also returns credits, answers, re-arms lanes and
   * goes on with the backlog. Returns the number of rows.
   */
  uint32_t poll(std::span<uint8_t> target, size_t offset, uint32_t max_frames);

  /**
   * Looks for completions again and again for at most `micros` microseconds, and gives the CPU away
   * in between to whoever waits for it. For a thread that has nothing else to do; not while armed.
   */
  Lingered linger(uint32_t micros);

  /** Arms the completion channel and looks again (R7). True: nothing is pending, sleep on fd().
   * False: poll again. */
  bool arm();
  /** The completion channel's descriptor, non-blocking; becomes readable after arm(). Owned by the
   * member. */
  int fd() const;

  /** A message of that peer's transport that arrived over the control connection. Never fails: bad
   * ones are events. */
  void tunnel(uint32_t peer, std::span<const uint8_t> message);

  Resources resources() const;

  /** Whether a peer is on another port than ours: then nothing of it can be mapped here, and what
   * it has is fetched. */
  bool elsewhere(uint32_t peer) const;

  /**
   * Reads a peer's memory into `to`, which is registered with pd() for local writing: RDMA READs in
   * pieces, over a lane of their own, with at most kFetchWindow bytes of all fetches in flight.
   * poll() goes on with it and tells by FETCH rows: how far it is now and then, and at last how it
   * ended. `to` belongs to the fetch until that last row (or close()): only then does no READ write
   * to it any more. Errors: ENOTCONN, EINVAL, EAGAIN (too many), EMFILE (no lane left), of the
   * device.
   * @return its number, which is not used again
   */
  base::Result<uint32_t> fetch(uint32_t peer, const RemoteMemory& from, std::byte* to,
                               uint32_t lkey);
  /** Posts no more of it; its last row comes all the same. Without effect when it is over. */
  void cancel_fetch(uint32_t number);

  /**
   * The protection domain of all that the member does, for memory of the caller's own: what is
   * registered with it must be deregistered before close(). Null after close().
   */
  ibv_pd* pd() const;

 private:
  class Core;
  explicit Member(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace millrace::transport
