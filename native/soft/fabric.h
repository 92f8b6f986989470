#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/files.h"
#include "base/status.h"
#include "soft/layout.h"

namespace millrace::soft {

/** The layout that this build reads and writes: kLayoutMajor, kLayoutMinor. */
struct Layout {
  uint32_t major, minor;
};
Layout build_layout();
#ifdef MILLRACE_STEPS
/** Test builds only: from here on this process passes for a build of another layout. */
void pretend_layout(const Layout& layout);
#endif

/** The file that the fabric's tables are in, and the locks that say who is present. */
inline constexpr const char* kRootName = "root";

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
  /**
   * Opens, or creates, the root file; the caller holds the folder's lock. A root of another layout,
   * or a damaged one, that nobody uses counts as none: all that is in the folder is removed
   * (`bytes` grows by it). With somebody using it: EPROTONOSUPPORT names both layouts, or EPROTO.
   */
  static base::Result<std::unique_ptr<Root>> open(int folder, const FabricPath& path, bool create,
                                                  uint64_t* bytes = nullptr);

  RootHeader& header() { return *reinterpret_cast<RootHeader*>(map_.data()); }
  ProcessRecord& process(uint32_t i) { return at(kProcessTable, i); }
  SrqRecord& srq(uint32_t i) { return at(kSrqTable, i); }
  QpRecord& qp(uint32_t i) { return at(kQpTable, i); }
  XrcdRecord& xrcd(uint32_t i) { return at(kXrcdTable, i); }
  GroupRecord& group(uint32_t i) { return at(kGroupTable, i); }
  FlowRecord& flow(uint32_t i) { return at(kFlowTable, i); }
  SpreadRecord& spread(uint32_t i) { return at(kSpreadTable, i); }
  /** Of a device: each has one port. */
  PortRecord& port(uint32_t device) { return at(kPortTable, device); }
  /** Who has a handle to the XRC target with this index, which is below targets(). */
  QpHolders& holders(uint32_t i) { return at(kHolderTable, i); }
  /** The lock word of atomics on memory that no file backs, by any hash of its address. */
  Word& atomic_lock(uint64_t hash) {
    return at(kLockTable, static_cast<uint32_t>(hash % kLockTable.count));
  }
  uint32_t processes() const { return kProcessTable.count; }
  uint32_t srqs() const { return kSrqTable.count; }
  uint32_t qps() const { return kQpTable.count; }
  uint32_t xrcds() const { return kXrcdTable.count; }
  uint32_t targets() const { return kHolderTable.count; }
  uint32_t groups() const { return kGroupTable.count; }
  /** Flow records that have memory (I9: never more than there are). */
  uint32_t flows() {
    return static_cast<uint32_t>(
        std::min<uint64_t>(header().flows_reserved.load(), kFlowTable.count));
  }
  /** Makes more of them. ENOMEM when the table is full, ENOSPC. Any thread. */
  base::Status reserve_flows();
  uint32_t spreads() const { return kSpreadTable.count; }

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
  T& at(const Table<T>& table, uint32_t i) {
    return *reinterpret_cast<T*>(map_.data() + table.offset + i * sizeof(T));
  }

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
