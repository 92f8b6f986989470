#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "transport/region.h"
#include "verbs/owners.h"

/**
 * Regions that any process of the host can open by a handle, what the vendor's ibv_exp_reg_mr with
 * sharing rights and ibv_exp_reg_shared_mr do (VERBS 4), on every provider.
 *
 *     <MILLRACE_SHM_DIR or /dev/shm>/millrace-regions.1/    1777: any user's
 *         <16 hexadecimal digits>/                          one region's; who has rights to it may
 * remove its file pages                                         the mode is the granted rights
 *
 * A handle names folder and inode. It is no secret: the mode is what protects a region. Each holder
 * has a shared flock on the file, which the kernel drops with its last descriptor and mapping. Who
 * lets go tries for the exclusive one: whoever gets it is the last, and removes the name. (OFD
 * locks would need the right to write for that.) What killed processes leave goes at the next
 * sweep: of who joins, and of `millrace clean`.
 */
namespace millrace::transport {

/** What sharing grants: a mode of user, group and other (0640, say; the maker's user can always
 * read) and what else create() needs.
 */
struct SharedRegionOptions {
  RegionOptions pages;
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;  ///< of our own MR
};

/** What a handle leads to, for messages and reports. */
struct SharedRegionInfo {
  mode_t mode = 0;
  uid_t user = 0;
  gid_t group = 0;
  uint64_t bytes = 0;
};

/** What sweep_regions() removed. */
struct SweptRegions {
  uint32_t regions = 0;
  uint64_t bytes = 0;
};

/**
 * A region's pages in this process: mapped, registered with a device, and held. One thread at a
 * time. Must go before its PD. Its pages are populated in the background.
 */
class SharedRegion {
 public:
  /** Which region: its folder's name, and the inode that its file must have. */
  struct Place {
    std::string name;
    uint64_t inode = 0;
  };

  /**
   * Makes a region. Errors: those of RegionFile::create(), ENOMEM of registering (with
   * RLIMIT_MEMLOCK), EACCES, EPERM or ENOENT of the folder. On failure nothing is left.
   */
  static base::Result<std::unique_ptr<SharedRegion>> create(ibv_pd* pd,
                                                            const SharedRegionOptions& options);

  /**
   * Opens a region of any process, as often as one likes, as long as anybody holds it.
   * @param access IBV_ACCESS_*: LOCAL_WRITE, REMOTE_WRITE and REMOTE_ATOMIC each ask for read and
   * write, else read only
   * @param address a multiple of kRegionAlignment to map it at if nothing is there, or null
   * Errors: EINVAL (no handle; address), ENOENT (gone, or never was), EACCES (names asked and
   * granted rights), ENOMEM
   */
  static base::Result<std::unique_ptr<SharedRegion>> open(ibv_pd* pd, const std::string& handle,
                                                          int access, void* address = nullptr);

  /** Ends the registration and the hold; the name goes with the last one. Pages stay while
   * mapping() is held. */
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  /** What others ask with. EPERM for one that was opened: it is its maker who shares it (VERBS 4).
   */
  base::Result<std::string> handle() const;
  ibv_mr* mr() const { return mr_.get(); }
  std::span<std::byte> bytes() const { return file_.bytes(); }
  bool writable() const { return file_.writable(); }
  /** The open file that bytes() is a mapping of, from its start. */
  int fd() const { return file_.fd(); }
  /** Keeps the pages mapped, not the name. */
  const std::shared_ptr<base::Mapping>& mapping() const { return file_.mapping(); }
  /** Whether all pages are present in this process. */
  bool populated() const { return population_.done(); }
  /** Why there are no huge pages though they were wanted; empty when there are, or it is not known
   * yet. */
  std::string huge_pages_note() const;

 private:
  SharedRegion(const Place& place, base::Fd own, RegionFile file, bool made, bool huge);
  base::Status enroll(ibv_pd* pd, int access);

  Place place_;
  base::Fd own_;  ///< the region's own folder
  RegionFile file_;
  bool made_;
  bool huge_;
  verbs::MrPtr mr_;
  Population population_;
};

/** Rights and size of what a handle leads to, for whoever may not open it. Errors: EINVAL, ENOENT.
 */
base::Result<SharedRegionInfo> inspect_region(const std::string& handle);

/**
 * Removes regions of this user (as root: of all) that nobody holds. Never waits; safe at any time,
 * and killed at any moment leaves what the next one removes.
 */
SweptRegions sweep_regions();

}  // namespace millrace::transport
