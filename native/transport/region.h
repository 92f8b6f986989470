#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/files.h"
#include "base/status.h"
#include "transport/background.h"

namespace millrace::transport {

/** Regions are mapped at multiples of this, and an address hint must be one (VERBS 4). */
inline constexpr size_t kRegionAlignment = 4 << 20;

/** What an opener asks for; the file's mode says whether it gets it (VERBS 4). */
enum class RegionAccess : uint8_t {
  kRead = 1,   ///< O_RDONLY, mapped for reading
  kWrite = 2,  ///< O_RDWR: there is no mapping that can be written only
};

/** What a region's pages shall be. */
struct RegionOptions {
  size_t bytes = 0;         ///< > 0; the file has exactly this size
  mode_t mode = 0600;       ///< granted rights, whatever the umask is
  bool huge_pages = false;  ///< wanted: populate() collapses pages to huge ones where it can
  /** Once set, making it ends soon with ECANCELED; null: nobody sets it. */
  const std::atomic<bool>* stop = nullptr;
};

/**
 * A file whose pages are shared: all of them are reserved before anything is mapped, so that no
 * access ends in SIGBUS for lack of memory. The name is the caller's to remove. Move only; one
 * thread at a time, except bytes().
 *
 * Who holds mapping() keeps the pages mapped, also after the RegionFile has gone (I5).
 */
class RegionFile {
 public:
  /**
   * Makes `name` (O_EXCL) in the folder, reserves all its bytes and maps it for writing. On failure
   * nothing is left. Errors name what was measured and the setting to change: ENOSPC (free bytes of
   * the file system), EFBIG (RLIMIT_FSIZE), ENOMEM (RLIMIT_AS), EEXIST, EACCES.
   */
  static base::Result<RegionFile> create(int folder, const std::string& name,
                                         const RegionOptions& options);

  /**
   * Opens and maps what create() made; the kernel checks the rights.
   * @param hint an address, a multiple of kRegionAlignment, or null. Taken if nothing is there.
   * Errors: EACCES (names the asked and the granted rights), ENOENT, EINVAL (hint, or no regular
   * file), ENOMEM
   */
  static base::Result<RegionFile> open(int folder, const std::string& name, RegionAccess access,
                                       void* hint = nullptr);

  /** open() in two steps, for who has to do something in between: the file, opened and checked. */
  static base::Result<base::Fd> open_file(int folder, const std::string& name, RegionAccess access);
  /** Maps a file of open_file() as it is now, and keeps it; on failure `file` still is the
   * caller's.
   */
  static base::Result<RegionFile> map_file(base::Fd& file, RegionAccess access,
                                           void* hint = nullptr);

  /** Exactly the file's bytes; valid as long as somebody holds mapping(). */
  std::span<std::byte> bytes() const { return {mapping_->data(), bytes_}; }
  bool writable() const { return access_ == RegionAccess::kWrite; }
  const std::shared_ptr<base::Mapping>& mapping() const { return mapping_; }
  /** The open file; its OFD locks and flock are the caller's to use. */
  int fd() const { return file_.get(); }

 private:
  RegionFile(base::Fd file, std::shared_ptr<base::Mapping> mapping, size_t bytes,
             RegionAccess access)
      : file_(std::move(file)), mapping_(std::move(mapping)), bytes_(bytes), access_(access) {}

  base::Fd file_;
  std::shared_ptr<base::Mapping> mapping_;
  size_t bytes_ = 0;
  RegionAccess access_ = RegionAccess::kRead;
};

/** The rights in a mode, in words: "user read and write, group read, other nothing". */
std::string rights_text(mode_t mode);

/** How fast pages are made. */
enum class Pace : uint8_t {
  kFull,
  /** A twenty-fifth of the time. A low priority would not do: whoever polls gives its CPU away in
   * between, and where CPUs are rare what has to end soon would not (the thread is waited for). */
  kGentle,
};

/**
 * Makes all pages of a mapping present in this process, so that no later access faults: for
 * reading, or for writing too. With `huge`, each huge page's worth is collapsed into one first
 * (MADV_COLLAPSE, Linux 6.1, whatever the settings for new pages are, but not where shmem_enabled
 * is `deny`). Takes about 0.3 s a gigabyte when the pages are new, and up to 5 s more for huge ones
 * where memory is in pieces; `stop` is looked at every 4 MiB. Any thread.
 */
void populate(std::span<std::byte> range, bool write, bool huge, const std::atomic<bool>& stop,
              Pace pace = Pace::kFull);

/** How much of a mapping's range is made of huge pages, bytes, as the kernel says now. Slow: for
 * reports. */
uint64_t huge_bytes(std::span<const std::byte> range);

/** Why a range got no huge pages, and what to set: from what the system says. */
std::string huge_note(int fd);

/** populate() in the background. Stopped at the latest when this goes. */
class Population {
 public:
  /** Keeps the pages mapped until it is done. A system without another thread: nothing is done,
   * pages come as used. */
  Population(const RegionFile& file, bool huge);

  /** Whether all pages were touched. Any thread. */
  bool done() const { return work_.done(); }

 private:
  const std::shared_ptr<base::Mapping> mapping_;
  Background work_;
};

}  // namespace millrace::transport
