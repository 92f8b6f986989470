#include "transport/backlog.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace millrace::transport {
namespace {

/** Small first, so that a peer that waits for a credit with one message does not cost a slot's
 * worth of heap. */
constexpr uint32_t kFirstCapacity = 1024;

void reserve(Body* body, uint32_t capacity) {
  std::unique_ptr<uint8_t[]> data(new uint8_t[capacity]);
  if (body->bytes > 0) std::memcpy(data.get(), body->data.get(), body->bytes);
  body->data = std::move(data);
  body->capacity = capacity;
}

}  // namespace

Body Body::copy_of(const uint8_t* from, uint32_t bytes, uint32_t records, uint32_t row_ends) {
  Body body;
  reserve(&body, bytes);
  std::memcpy(body.data.get(), from, bytes);
  body.bytes = bytes;
  body.records = records;
  body.row_ends = row_ends;
  return body;
}

void Backlog::append(const uint8_t* records, uint32_t bytes, uint32_t frame_room, bool ends_row) {
  uint32_t at = 0;
  while (at < bytes) {
    const uint32_t first = record_bytes(records + at, bytes - at);
    assert(first > 0 && first <= frame_room);
    if (bodies_.empty() || bodies_.back().bytes + first > frame_room) bodies_.emplace_back();
    Body& body = bodies_.back();
    // As many records as still fit in this frame.
    uint32_t take = first;
    uint32_t count = 1;
    while (at + take < bytes) {
      const uint32_t next = record_bytes(records + at + take, bytes - at - take);
      if (body.bytes + take + next > frame_room) break;
      take += next;
      ++count;
    }
    if (body.bytes + take > body.capacity) {
      const uint32_t wanted =
          std::max(body.bytes + take, std::max(kFirstCapacity, body.capacity * 2));
      reserve(&body, std::min(frame_room, wanted));
    }
    std::memcpy(body.data.get() + body.bytes, records + at, take);
    body.bytes += take;
    body.records += count;
    bytes_ += take;
    at += take;
  }
  if (ends_row) ++bodies_.back().row_ends;
}

Body Backlog::take_front() {
  Body body = std::move(bodies_.front());
  bodies_.pop_front();
  bytes_ -= body.bytes;
  return body;
}

void Backlog::put_back(std::deque<Body>&& bodies) {
  while (!bodies.empty()) {
    bytes_ += bodies.back().bytes;
    bodies_.push_front(std::move(bodies.back()));
    bodies.pop_back();
  }
}

void Backlog::clear() {
  bodies_.clear();
  bytes_ = 0;
}

}  // namespace millrace::transport
