#include "transport/fetch.h"

#include <errno.h>

#include <algorithm>
#include <utility>

#include "transport/core.h"

/**
 * Payloads of members on other hosts: the receiver reads them out of the publisher's memory by RDMA
 * READ, in pieces over a lane of their own, so that messages don't wait behind them. A READ names
 * the publisher's SRQ, by which the target knows against which PD the key is checked (VERBS 2.10).
 * The publisher does nothing meanwhile; what it must keep until it hears that the fetch is over is
 * its business and the caller's.
 */
namespace millrace::transport {
namespace {

/** Error completions of one fetch, with no piece coming through between them, that are enough. */
constexpr uint32_t kMaxFetchFailures = 16;
/** Fetches of a member at once. */
constexpr size_t kMaxFetches = 1024;

/** What trying again does not change: the memory is not there any more, or never was. */
bool is_final(ibv_wc_status status) {
  return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
         status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_LOC_LEN_ERR;
}

}  // namespace

bool Member::Core::elsewhere(uint32_t index) {
  const Peer* const peer = peers_.connected(index);
  if (peer == nullptr) return false;
  const Address& ours = lanes_->port().address;
  const Address& theirs = peer->remote.address;
  return ours.lid != theirs.lid || ours.gid != theirs.gid;
}

base::Result<uint32_t> Member::Core::fetch(uint32_t index, const RemoteMemory& from, std::byte* to,
                                           uint32_t lkey) {
  constexpr const char* what = "fetch";
  Peer* const peer = peers_.connected(index);
  if (peer == nullptr || peer->refused)
    return base::Status::error(ENOTCONN, what, base::format("peer %u is not connected", index));
  if (from.bytes == 0 || from.address + from.bytes < from.address)
    return base::Status::error(EINVAL, what, "no bytes, or more than there is of an address space");
  if (fetches_.size() >= kMaxFetches)
    return base::Status::error(EAGAIN, what,
                               base::format("%zu fetches are under way", kMaxFetches));
  if (fetch_lane_ == 0) {
    auto lane = open_lane();
    if (!lane.ok()) return lane.status();
    fetch_lane_ = lane.value();
  }
  Fetch fetch;
  fetch.number = ++fetches_made_;
  fetch.peer = index;
  fetch.generation = peer->generation;
  fetch.from = from;
  fetch.to = to;
  fetch.lkey = lkey;
  fetches_.push_back(fetch);
  pump_fetches();
  return fetch.number;
}

void Member::Core::cancel_fetch(uint32_t number) {
  if (Fetch* const fetch = find_fetch(number)) end_fetch(*fetch, FetchEnd::kCancelled);
  reap_fetches();
}

Fetch* Member::Core::find_fetch(uint32_t number) {
  const auto found = std::find_if(fetches_.begin(), fetches_.end(),
                                  [=](const Fetch& fetch) { return fetch.number == number; });
  return found == fetches_.end() ? nullptr : &*found;
}

/** Posts pieces while there is room in the window, one of each fetch in turn. */
void Member::Core::pump_fetches() {
  bool staged = !fetches_.empty();
  while (staged) {
    staged = false;
    for (Fetch& fetch : fetches_) staged |= stage_piece(fetch);
  }
  post_lanes();
}

bool Member::Core::stage_piece(Fetch& fetch) {
  const uint64_t bytes = std::min(kFetchPiece, fetch.from.bytes - fetch.next);
  if (fetch.end != FetchEnd::kNone || bytes == 0 || fetches_in_flight_ + bytes > kFetchWindow)
    return false;
  Peer* const peer = peers_.find(fetch.peer, fetch.generation);
  if (peer == nullptr) return false;
  Destination& dest = destination(*peer, fetch_lane_);
  Lane* const lane = lane_of(*peer, dest);
  if (lane == nullptr || dest.held || !lane->up() || !lane->room(0)) return false;
  Posted& posted = lane->next();
  posted = Posted{};
  posted.kind = Posted::Kind::kRead;
  posted.lane = static_cast<uint8_t>(fetch_lane_);
  posted.peer = fetch.peer;
  posted.generation = fetch.generation;
  posted.body_bytes = static_cast<uint32_t>(bytes);
  posted.records = fetch.number;
  posted.sequence = fetch.next;
  posted.arena_low = ~uint64_t{0};  // it names nothing of the arena
  lane->stage_read(peer->remote.srq_number, fetch.to + fetch.next, static_cast<uint32_t>(bytes),
                   fetch.lkey, fetch.from.address + fetch.next, fetch.from.rkey);
  fetch.next += bytes;
  fetch.in_flight += bytes;
  fetches_in_flight_ += bytes;
  return true;
}

/** A READ is not in flight any more: it came, or it failed and its lane goes on without it. */
void Member::Core::piece_landed(const Posted& posted, bool came, bool culprit,
                                ibv_wc_status status) {
  fetches_in_flight_ -= posted.body_bytes;
  Fetch* const fetch = find_fetch(posted.records);
  if (fetch == nullptr) return;
  fetch->in_flight -= posted.body_bytes;
  if (came) {
    // Of one fetch they come in order: a lane is a queue, and a fetch has one.
    fetch->done = posted.sequence + posted.body_bytes;
    fetch->failures = 0;
    counter(kBytesReceived) += posted.body_bytes;
    if (fetch->done == fetch->from.bytes) {
      fetch->end = FetchEnd::kDone;
    } else if (fetch->done - fetch->told >= kFetchProgress) {
      tell_fetch(*fetch);
    }
  } else {
    // To be read again from there: reading twice does no harm.
    fetch->next = std::min(fetch->next, posted.sequence);
    if (culprit && (is_final(status) || ++fetch->failures >= kMaxFetchFailures)) {
      fetch->status = status;
      end_fetch(*fetch, FetchEnd::kFailed);
    }
  }
}

void Member::Core::end_fetch(Fetch& fetch, FetchEnd end) {
  if (fetch.end == FetchEnd::kNone) fetch.end = end;
}

void Member::Core::end_fetches_of(uint32_t peer) {
  for (Fetch& fetch : fetches_) {
    if (fetch.peer == peer) end_fetch(fetch, FetchEnd::kPeerLost);
  }
  reap_fetches();
}

/** Says of those that are over, and that no READ can write for any more, how they ended. */
void Member::Core::reap_fetches() {
  for (auto it = fetches_.begin(); it != fetches_.end();) {
    if (it->end == FetchEnd::kNone || it->in_flight > 0) {
      ++it;
      continue;
    }
    tell_fetch(*it);
    it = fetches_.erase(it);
  }
}

void Member::Core::tell_fetch(Fetch& fetch) {
  fetch.told = fetch.done;
  events_.push_back({EventKind::kFetch,
                     -1,
                     {static_cast<int32_t>(fetch.number), static_cast<int32_t>(fetch.end),
                      static_cast<int32_t>(static_cast<uint32_t>(fetch.done)),
                      static_cast<int32_t>(static_cast<uint32_t>(fetch.done >> 32)),
                      static_cast<int32_t>(fetch.status), 0},
                     {}});
}

}  // namespace millrace::transport
