#include <algorithm>
#include <atomic>

#include "transport/core.h"

/** What is due to peers beside data: grants, answers to WAIT, recalls and statements (R11 to R13;
 * models d1, d2). */
namespace millrace::transport {

/** Puts a peer into the list of those that settle() looks at. */
void Member::Core::attend(Peer& peer) {
  if (peer.attention) return;
  peer.attention = true;
  attention_.push_back(peer.index);
}

/** A recall may have been asked of us: its number was written before the frame that is being
 * demultiplexed. */
void Member::Core::obey_recall(Peer& peer) {
  const uint64_t word = inbox_->recall_word(peer.index);
  if (word >> 48 != peer.tag) return;
  refresh_credits(peer);
  bool obeyed = false;
  (void)peer.credits.burn(static_cast<uint32_t>(word), &obeyed);
  if (obeyed) peer.owes_statement = true;  // also when nothing was burnt: the recall is over
}

/**
 * A sender is starved: doubles what it may use while the pool has room. If the pool is short,
 * others are asked to burn what they don't use; they say so in their own time, and the next WAIT
 * finds the pool fuller.
 */
void Member::Core::lend_to(Peer& peer) {
  const uint32_t cap = std::max<uint32_t>(16, inbox_->slots() / 2);
  const uint32_t wish =
      std::min(kUsableFloor + peer.book.lent(), cap - std::min(cap, peer.book.lent()));
  const uint32_t got = inbox_->take(wish);
  if (got > 0) peer.book.lend(got);
  if (got == wish) return;
  for (Peer* other : peers_.all()) {
    if (other == &peer || other->book.lent() == 0) continue;
    const bool idle = other->frames_received == other->frames_at_last_look;
    other->frames_at_last_look = other->frames_received;
    // Of the busy ones only those that have much more.
    if (!idle && other->book.lent() <= 2 * (peer.book.lent() + kUsableFloor)) continue;
    if (!other->book.recall()) continue;
    ++counter(kRecalls);
    attend(*other);
  }
}

void Member::Core::settle() {
  if (attention_.empty()) return;
  size_t kept = 0;
  for (size_t i = 0; i < attention_.size(); ++i) {
    const uint32_t index = attention_[i];
    Peer* const peer = peers_.connected(index);
    if (peer == nullptr || !peer->attention) continue;
    if (settle_peer(*peer)) {
      attention_[kept++] = index;
    } else {
      peer->attention = false;
    }
  }
  attention_.resize(kept);
}

/** True: something is still due. */
bool Member::Core::settle_peer(Peer& peer) {
  if (peer.refused) return false;
  Destination& dest = destination(peer, 0);
  Lane* const shared = lane_of(peer, dest);
  if (shared == nullptr) return false;
  Lane& lane = *shared;
  if (!lane.up() || dest.held) return true;

  // The recall's number is written before the frame that makes the peer look at it, on the same
  // lane.
  if (peer.recall_announced != peer.book.recall_number()) {
    if (!lane.room(0)) return true;
    if (!stage_grant(peer, lane, 1, peer.book.recall_number())) return true;
    peer.recall_announced = peer.book.recall_number();
    peer.owes_recall = true;
  }
  if (!lane.up()) return true;
  if (peer.owes_answer) {
    if (!lane.room(0)) return true;
    peer.owes_answer = false;
    stage_frame(peer, dest, lane, kFlagAnswer | kFlagControl);
  }
  if (!lane.up()) return true;
  const uint64_t news = peer.book.granted() - peer.announced;
  // In batches of half of what it may use; who runs out earlier says WAIT (R13).
  if (peer.announce_again || news >= std::max(1u, (kUsableFloor + peer.book.lent()) / 2)) {
    if (!lane.room(0)) return true;
    const uint64_t granted = peer.book.granted();
    if (!stage_grant(peer, lane, 0, granted)) return true;
    peer.announced = granted;
    peer.announce_again = false;
  }
  if (!lane.up()) return true;
  if (peer.owes_statement || peer.owes_recall) {
    if (!lane.room(0)) return true;
    if (peer.credits.available() <= 1) refresh_credits(peer);
    if (!peer.credits.may_send())
      return true;  // a WAIT is unanswered; its answer brings us back here
    stage_frame(peer, dest, lane, kFlagControl);
  }
  return false;
}

/** Writes our grant (0) or recall number (1) into the peer's memory. */
bool Member::Core::stage_grant(Peer& peer, Lane& lane, uint32_t which, uint64_t value) {
  uint64_t* const word = arena_->word(peer.index, which);
  // A WRITE that is still outstanding takes the newer value: counts only grow. With another peer's
  // tag it is lost.
  std::atomic_ref<uint64_t>(*word).store(uint64_t{peer.remote.credit_tag} << 48 | value,
                                         std::memory_order_relaxed);
  Posted& posted = lane.next();
  posted.kind = Posted::Kind::kGrant;
  posted.flags = 0;
  posted.carried = which == 1 ? kCarriedRecall : 0;
  posted.lane = 0;
  posted.run_count = 0;
  posted.bounce = -1;
  posted.peer = peer.index;
  posted.generation = peer.generation;
  posted.arena_low = flush_low_;
  progress_ = true;
  lane.stage_write(peer.remote.srq_number, word,
                   peer.remote.credit_address + which * sizeof(uint64_t), peer.remote.credit_rkey);
  return true;
}

}  // namespace millrace::transport
