#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/files.h"
#include "base/status.h"
#include "transport/holds.h"

namespace millrace::transport {

/**
 * The blocks of others that a member holds: each publisher's pool files mapped for reading, once,
 * and the holds that were taken. A hold is given back when nothing refers to it any more; then, not
 * before, its publisher may use the block again (I5).
 *
 * A hold can be referred to through two mappings: one whose references end when somebody says so,
 * and one whose references end when nobody can reach the memory. So a release that empties views
 * does not empty those of someone who was promised to keep them.
 *
 * One thread makes all calls. Nothing throws.
 */
class Leases {
 public:
  /** Which mapping of a block; or the taking itself, which is a reference until release(). */
  enum class Use : uint8_t { kLeased = 0, kOwned = 1, kTaken = 2 };

  /** One file of a publisher's pool, mapped for reading and watched for stray writes. */
  class View {
   public:
    explicit View(base::Mapping mapping);
    ~View();
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    uint8_t* data() const { return reinterpret_cast<uint8_t*>(mapping_.data()); }
    size_t size() const { return mapping_.size(); }
    /** Puts private copies of [offset, offset + bytes) in place. ENOMEM. */
    base::Status privatise(uint64_t offset, uint64_t bytes);

   private:
    base::Mapping mapping_;
  };

  struct Memory {
    uint8_t* data = nullptr;
    uint64_t bytes = 0;
    std::shared_ptr<View> view;  ///< keeps it mapped
  };
  /** What giving back a reference came to. */
  struct Released {
    bool last = false;    ///< the hold is given back
    bool wanted = false;  ///< its publisher waits for blocks; what is only kept may be vacated
    uint32_t strays = 0;  ///< pages that had been written to by mistake
  };
  struct Counts {
    uint32_t publishers = 0, views = 0, holds = 0;
    uint64_t bytes = 0;
    uint64_t copies = 0, copied_bytes = 0;  ///< blocks moved to private memory, ever
  };

  /** `folder` is an open descriptor of the domain's folder; `self` this member's incarnation. */
  Leases(base::Fd folder, uint64_t self) : folder_(std::move(folder)), self_(self) {}
  ~Leases() { close(); }
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  /**
   * Takes what a descriptor offers (OFFERED -> HELD) and maps its file if that is new. What it says
   * is checked (I9): EPROTO for nonsense, ENOENT when the offer was taken back, others when it
   * cannot be mapped; then nothing is held.
   * @return the hold's number, never used again; the caller gives the taking back (kTaken) once
   * everyone has referred to it
   */
  base::Result<uint32_t> take(uint64_t publisher, std::span<const uint8_t> descriptor);
  /** Nobody here wants what a descriptor offers. */
  void revoke(uint64_t publisher, std::span<const uint8_t> descriptor);
  /** A reference of that kind to the block's memory; at most one of each kind. */
  base::Result<Memory> refer(uint32_t hold, Use use);
  bool refers(uint32_t hold, Use use) const {
    const auto found = holds_.find(hold);
    return found != holds_.end() && found->second.views[static_cast<int>(use)] != nullptr;
  }
  /** Gives a reference back; harmless when it was before. */
  Released release(uint32_t hold, Use use);

  /** The publisher is gone and what it had sent is taken: what was never taken is given back, and
   * its files go with the last hold (R16, R17). */
  void publisher_gone(uint64_t publisher);
  /**
   * Gives back what is only kept, not leased, of one publisher, which is short of blocks: memory
   * that is referred to keeps its content in private copies. @return how many holds
   */
  uint32_t vacate(uint64_t publisher);
  /** Gives everything back. Memory that is still referred to keeps its content in private copies,
   * unless nobody will read it any more (`keep` false). */
  void close(bool keep = true);

  Counts counts() const;

 private:
  struct File {
    base::Fd fd;
    uint64_t bytes = 0;
    uint32_t holds = 0;
    std::shared_ptr<View> views[2];
  };
  struct Publisher {
    HoldTable table;
    std::unordered_map<uint32_t, File> files;
    uint32_t holds = 0;
    bool gone = false;
  };
  struct Hold {
    uint64_t publisher;
    Publisher* from;  ///< stays where it is while there is a hold of it
    File* file;       ///< the same
    Descriptor at;
    std::shared_ptr<View> views[2];  ///< through which it is referred to; null: it is not
    bool taken = true;
  };

  base::Result<Publisher*> publisher(uint64_t incarnation);
  base::Result<File*> file(uint64_t incarnation, Publisher& of, const Descriptor& at);
  void forget_if_done(uint64_t incarnation);
  bool privatise(Hold& hold, bool keep);

  base::Fd folder_;
  uint64_t self_;
  bool closed_ = false;
  uint32_t next_ = 0;
  uint64_t copies_ = 0;
  uint64_t copied_bytes_ = 0;
  std::map<uint64_t, Publisher> publishers_;
  std::unordered_map<uint32_t, Hold> holds_;
};

}  // namespace millrace::transport
