#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/files.h"
#include "base/status.h"
#include "soft/layout.h"

namespace millrace::soft {

/** Where a fabric lies: `<base>/millrace-soft.<major>.<uid>/<fabric>`. */
struct FabricPath {
  std::string base;    ///< MILLRACE_SHM_DIR or /dev/shm
  std::string parent;  ///< per layout major and user, mode 0700
  std::string folder;

  /** From the environment. EINVAL for a fabric name that could leave its folder. */
  static base::Result<FabricPath> from_environment();
};

/**
 * Exclusive access to a fabric's folder for joining, leaving and cleaning (an flock on the folder
 * itself, which the kernel drops with its holder). Never taken on the data path. Move only; unlocks
 * when destroyed.
 */
class FolderLock {
 public:
  /**
   * Locks the folder and makes sure that the path still leads to it (the last leaver removes
   * folders). Waits at most `wait_ms`; then ETIMEDOUT names the process that holds it. ENOENT:
   * there is no such folder.
   */
  static base::Result<FolderLock> take(const FabricPath& path, int wait_ms = 5000);

  int folder() const { return fd_.get(); }

 private:
  explicit FolderLock(base::Fd fd) : fd_(std::move(fd)) {}
  base::Fd fd_;
};

/**
 * An open root file. Pointers stay valid as long as this object lives. The descriptor that tests
 * presence locks is another open file description than the one that holds this process's own lock,
 * so the own lock shows up too.
 */
class Root {
 public:
  /** Opens, or creates, the root file; the caller holds the folder's lock. */
  static base::Result<std::unique_ptr<Root>> open(int folder, const FabricPath& path, bool create);

  RootHeader& header() { return *reinterpret_cast<RootHeader*>(map_.data()); }
  ProcessRecord& process(uint32_t i) {
    return at<ProcessRecord>(header_.process_offset, header_.process_stride, i);
  }
  SrqRecord& srq(uint32_t i) { return at<SrqRecord>(header_.srq_offset, header_.srq_stride, i); }
  QpRecord& qp(uint32_t i) { return at<QpRecord>(header_.qp_offset, header_.qp_stride, i); }
  XrcdRecord& xrcd(uint32_t i) {
    return at<XrcdRecord>(header_.xrcd_offset, header_.xrcd_stride, i);
  }
  /** Who has a handle to the XRC target with this index, which is below targets(). */
  GroupRecord& group(uint32_t i) {
    return at<GroupRecord>(header_.group_offset, header_.group_stride, i);
  }
  FlowRecord& flow(uint32_t i) {
    return at<FlowRecord>(header_.flow_offset, header_.flow_stride, i);
  }
  SpreadRecord& spread(uint32_t i) {
    return at<SpreadRecord>(header_.spread_offset, header_.spread_stride, i);
  }
  /** Of a device: each has one port. */
  PortRecord& port(uint32_t device) {
    return at<PortRecord>(header_.port_offset, header_.port_stride, device);
  }
  QpHolders& holders(uint32_t i) {
    return at<QpHolders>(header_.holder_offset, header_.holder_stride, i);
  }
  /** The lock word of atomics on memory that no file backs, by any hash of its address. */
  Word& atomic_lock(uint64_t hash) {
    return at<Word>(header_.lock_offset, sizeof(Word),
                    static_cast<uint32_t>(hash % header_.lock_count));
  }
  uint32_t processes() const { return header_.process_count; }
  uint32_t srqs() const { return header_.srq_count; }
  uint32_t qps() const { return header_.qp_count; }
  uint32_t xrcds() const { return header_.xrcd_count; }
  uint32_t targets() const { return header_.holder_count; }
  uint32_t groups() const { return header_.group_count; }
  uint32_t flows() const { return header_.flow_count; }
  uint32_t spreads() const { return header_.spread_count; }

  /**
   * The next creation number of a kind: never 0, never one whose table index is in use, so a number
   * comes back after 2^16 creations at the earliest. 0 when the table is full. The record's word
   * says CREATING then.
   */
  uint32_t claim_srq(uint32_t incarnation);
  uint32_t claim_qp(uint32_t incarnation);
  /** The same for an XRC target: its index is below targets(). */
  uint32_t claim_target(uint32_t incarnation);

  /** Whether an open file description holds the presence lock of the slot (R5). */
  bool slot_locked(uint32_t slot) const { return base::byte_is_locked(fd_.get(), slot); }
  /** Death is certain: the slot is not that incarnation's any more, or its lock is free (R5). */
  bool is_dead(uint32_t slot, uint32_t incarnation);

  int folder() const { return folder_.get(); }
  int fd() const { return fd_.get(); }
  const FabricPath& path() const { return path_; }
  /** The incarnation that this opening got; a process that joins uses it as its own. Names who
   * closes what. */
  uint32_t incarnation() const { return incarnation_; }
  /** One closing of a target QP at a time per opening, so that a CLOSING word has one author. */
  std::mutex& closing() { return closing_; }

 private:
  Root(FabricPath path, base::Fd folder, base::Fd fd, base::Mapping map);

  uint32_t claim_record(uint32_t number, uint32_t incarnation);

  template <class T>
  T& at(uint32_t offset, uint32_t stride, uint32_t i) {
    return *reinterpret_cast<T*>(map_.data() + offset + static_cast<size_t>(stride) * i);
  }

  /** The header's numbers, copied and checked once; never read again from shared memory (I9). */
  struct Numbers {
    uint32_t process_offset, process_count, process_stride;
    uint32_t srq_offset, srq_count, srq_stride;
    uint32_t qp_offset, qp_count, qp_stride;
    uint32_t xrcd_offset, xrcd_count, xrcd_stride;
    uint32_t holder_offset, holder_count, holder_stride;
    uint32_t group_offset, group_count, group_stride;
    uint32_t flow_offset, flow_count, flow_stride;
    uint32_t port_offset, port_stride;
    uint32_t spread_offset, spread_count, spread_stride;
    uint32_t lock_offset, lock_count;
  } header_;

  uint32_t incarnation_ = 0;
  std::mutex closing_;
  FabricPath path_;
  base::Fd folder_;
  base::Fd fd_;
  base::Mapping map_;
};

/** Names of a process's files in the fabric's folder. They carry the incarnation and are never used
 * again. */
std::string chunk_name(uint32_t slot, uint32_t incarnation, uint32_t chunk);
std::string wake_name(uint32_t slot, uint32_t incarnation, uint32_t channel);
std::string alive_name(uint32_t slot, uint32_t incarnation);
/** A ring belongs to its receiver: whoever reaps the receiver removes it, whoever reaps the
 * initiator does not. */
std::string ring_name(uint64_t receiver, uint64_t cq_serial, uint64_t directory_entry);

/** Makes the per-user parent and the fabric's folder, and checks that both are ours alone (EACCES
 * says whose). */
base::Status make_folders(const FabricPath& path);

}  // namespace millrace::soft
