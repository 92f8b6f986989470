#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transport/backlog.h"
#include "transport/credits.h"
#include "transport/handshake.h"
#include "transport/lane.h"
#include "transport/rows.h"

/** What a member keeps of one other: credits in both directions, and the frames to it by lane. */
namespace millrace::transport {

/** A row of `sends` that waits for its flush to end. */
struct PendingRun {
  uint32_t offset, bytes, records;
};

/** A frame whose fate the receiver has to tell (R14). */
struct DoubtfulFrame {
  uint64_t sequence;
  uint8_t flags;
  uint8_t carried;
  uint32_t row_ends;
  Body body;  ///< empty for control frames
};

/** One (peer, lane): frames to it are in order. */
struct Destination {
  uint32_t lane = 0;
  uint64_t next_sequence = 1;
  uint64_t completed = 0;           ///< every frame up to this sequence is in the peer's inbox
  std::vector<PendingRun> pending;  ///< rows of the flush that is running, from pending_head on
  size_t pending_head = 0;
  Backlog backlog;
  RowLedger rows;
  bool touched = false;  ///< in the list of this flush
  bool active = false;   ///< in the list of destinations with a backlog
  bool held = false;     ///< nothing is posted until the peer states its last sequence
  uint64_t ask = 0;      ///< number of the unanswered ask, when held
  uint64_t asked_ns = 0;
  uint32_t failures = 0;  ///< error completions that named this destination since the last success
  std::deque<DoubtfulFrame> doubtful;
};

struct Peer {
  enum class State : uint8_t { kReserved, kConnected };
  State state = State::kReserved;
  uint32_t index = 0;
  uint32_t generation = 0;
  uint16_t tag = 0;      ///< what it must put into our credit words
  bool refused = false;  ///< given up: nothing is sent any more
  uint64_t incarnation = 0;
  OfferData remote;         ///< what it offered
  uint32_t frame_room = 0;  ///< body bytes of a frame to it

  SendCredits credits;          ///< ours at its inbox
  GrantBook book;               ///< its credits at ours
  uint64_t announced = 0;       ///< what it was told of book.granted()
  bool announce_again = false;  ///< what told it may be lost
  uint32_t recall_announced = 0;
  bool owes_answer = false;     ///< it said WAIT
  bool owes_statement = false;  ///< we burnt credits, it does not know
  bool owes_recall = false;     ///< a control frame is to wake it for its recall
  bool attention = false;       ///< in the list of peers to settle
  bool dirty = false;           ///< its row in `peers` is out of date

  std::array<uint64_t, kMaxLanes> last{};  ///< last frame sequence from it, per its lane
  std::array<std::unique_ptr<Destination>, kMaxLanes> lanes;

  uint64_t rows_accepted = 0;
  uint64_t rows_completed = 0;
  uint64_t frames_received = 0;
  uint64_t frames_lost = 0;
  uint64_t frames_at_last_look = 0;  ///< frames_received when a recall was last considered
  uint64_t backlog_bytes = 0;
};

}  // namespace millrace::transport
