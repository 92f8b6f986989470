#include "transport/shared_region.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/step.h"
#include "transport/errors.h"

namespace millrace::transport {
namespace {

using base::step;

constexpr const char* kPages = "pages";
constexpr mode_t kAnyUser = 01777;
/** Attempts while others remove what is being made. */
constexpr int kAttempts = 100;
constexpr int kWrites = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

std::string regions_folder() {
  const char* base = getenv("MILLRACE_SHM_DIR");
  return std::string(base != nullptr && *base != '\0' ? base : "/dev/shm") + "/millrace-regions.1";
}

base::Status folder_error(int error, const char* what, const std::string& path) {
  std::string detail = path + ": " + strerror(error);
  if (error == ENOENT) detail += " (MILLRACE_SHM_DIR must name an existing folder)";
  return base::Status::error(error, what, std::move(detail));
}

base::Fd open_folder(int at, const char* name) {
  return base::Fd(openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
}

/**
 * Where all regions are; made if need be. Whose it is does not matter, as long as nobody but owners
 * removes from it.
 */
base::Result<base::Fd> make_regions_folder() {
  constexpr const char* what = "open the regions' folder";
  const std::string path = regions_folder();
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return folder_error(errno, "create the regions' folder", path);
  base::Fd fd = open_folder(AT_FDCWD, path.c_str());
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return folder_error(errno, what, path);
  // New, or its maker was killed here.
  if ((info.st_mode & 07777) == 0700 && info.st_uid == geteuid()) (void)fchmod(fd.get(), kAnyUser);
  if ((info.st_mode & (S_ISVTX | S_IWOTH)) == S_IWOTH) {
    return base::Status::error(
        EPERM, what, path + " lets any user remove what another one made; run chmod 1777 on it");
  }
  return fd;
}

/** The region's own folder: who may use the pages may remove their name, everybody may look at
 * their rights. */
mode_t folder_mode(mode_t rights) {
  return 0711 | ((rights & 060) != 0 ? 070 : 0) | ((rights & 06) != 0 ? 07 : 0);
}

/** A name that no other region has: 64 bits of the system's random source. */
base::Result<std::string> new_name() {
  uint64_t number = 0;
  base::Fd random(open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  if (!random.valid() || read(random.get(), &number, sizeof(number)) != sizeof(number)) {
    return base::Status::error(errno, "name a region", "/dev/urandom could not be read");
  }
  return base::format("%016" PRIx64, number);
}

bool is_name(const char* name) {
  return strlen(name) == 16 && strspn(name, "0123456789abcdef") == 16;
}

std::string to_text(const SharedRegion::Place& place) {
  return base::format("r1-%s-%" PRIx64, place.name.c_str(), place.inode);
}

base::Result<SharedRegion::Place> parse(const std::string& handle) {
  char name[17] = "";
  uint64_t inode = 0;
  if (sscanf(handle.c_str(), "r1-%16[0-9a-f]-%" SCNx64, name, &inode) == 2) {
    SharedRegion::Place place = {name, inode};
    // Exactly what to_text() writes: no sign, space, zero or end of another kind.
    if (is_name(name) && to_text(place) == handle) return place;
  }
  return base::Status::error(
      EINVAL, "read a region's handle",
      "it is not one: a handle is r1-<16 hexadecimal digits>-<hexadecimal number>");
}

base::Status gone(const std::string& handle) {
  return base::Status::error(
      ENOENT, "open a region",
      base::format("there is no region %s in %s: its last holder closed it, or it is another "
                   "host's or in another MILLRACE_SHM_DIR",
                   handle.c_str(), regions_folder().c_str()));
}

/**
 * Takes a shared hold, if nobody is about to remove the file and it still has its name. From then
 * on it keeps it.
 */
bool hold(int fd) {
  struct stat info;
  return flock(fd, LOCK_SH | LOCK_NB) == 0 && fstat(fd, &info) == 0 && info.st_nlink > 0;
}

/**
 * Lets go of the pages in the folder `own`, and removes their name if that was the last hold. Of
 * several at once each drops its own lock before it asks for the exclusive one, so that one of them
 * gets it.
 */
bool let_go(int pages, int own, const std::string& name) {
  if (flock(pages, LOCK_EX | LOCK_NB) != 0) {
    (void)flock(pages, LOCK_UN);
    return false;
  }
  step("region-last");
  if (unlinkat(own, kPages, 0) != 0) return false;
  step("region-unnamed");
  // The folder of another user's region stays in a sticky one, empty, until that user's sweep.
  (void)rmdir((regions_folder() + "/" + name).c_str());
  (void)rmdir(regions_folder().c_str());
  return true;
}

}  // namespace

SharedRegion::SharedRegion(const Place& place, base::Fd own, RegionFile file, bool made, bool huge)
    : place_(place),
      own_(std::move(own)),
      file_(std::move(file)),
      made_(made),
      huge_(huge),
      population_(file_, huge) {}

SharedRegion::~SharedRegion() {
  (void)mr_.close();
  (void)let_go(file_.fd(), own_.get(), place_.name);
}

base::Result<std::unique_ptr<SharedRegion>> SharedRegion::create(
    ibv_pd* pd, const SharedRegionOptions& options) {
  constexpr const char* what = "create a region";
  RegionOptions pages = options.pages;
  pages.mode |= S_IRUSR;  // or a sweep of its maker's could not ask whether somebody holds it
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto all = make_regions_folder();
    if (!all.ok()) return all.status();
    step("region-folder");
    auto name = new_name();
    if (!name.ok()) return name.status();
    const char* const own_name = name.value().c_str();
    // Others, and sweeps, remove what is empty and what nobody holds: ENOENT is no error, but a
    // reason to begin again.
    if (mkdirat(all.value().get(), own_name, 0700) != 0) {
      if (errno == ENOENT || errno == EEXIST) continue;
      return folder_error(errno, what, regions_folder());
    }
    step("region-own-folder");
    base::Fd own = open_folder(all.value().get(), own_name);
    struct stat info;
    if (!own.valid() || fstat(own.get(), &info) != 0 || info.st_uid != geteuid()) continue;
    (void)fchmod(own.get(), folder_mode(pages.mode));
    auto file = RegionFile::create(own.get(), kPages, pages);
    if (!file.ok()) {
      if (file.status().code == ENOENT) continue;
      (void)unlinkat(all.value().get(), own_name, AT_REMOVEDIR);
      (void)rmdir(regions_folder().c_str());
      base::Status status = file.status();
      status.detail = regions_folder() + "/" + name.value() + "/" + status.detail;
      return status;
    }
    step("region-made");
    if (!hold(file.value().fd())) continue;
    step("region-held");
    (void)fstat(file.value().fd(), &info);
    std::unique_ptr<SharedRegion> region(
        new SharedRegion({name.value(), static_cast<uint64_t>(info.st_ino)}, std::move(own),
                         file.take(), true, pages.huge_pages));
    base::Status status = region->enroll(pd, options.access);
    if (!status.ok()) return status;
    return region;
  }
  return base::Status::error(EAGAIN, what,
                             regions_folder() + " is removed again and again by someone else");
}

base::Result<std::unique_ptr<SharedRegion>> SharedRegion::open(ibv_pd* pd,
                                                               const std::string& handle,
                                                               int access, void* address) {
  const auto parsed = parse(handle);
  if (!parsed.ok()) return parsed.status();
  const Place& place = parsed.value();
  const std::string folder = regions_folder() + "/" + place.name;
  const RegionAccess asked = (access & kWrites) != 0 ? RegionAccess::kWrite : RegionAccess::kRead;
  base::Fd own(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!own.valid())
    return errno == ENOENT ? gone(handle) : folder_error(errno, "open a region", folder);
  auto file = RegionFile::open_file(own.get(), kPages, asked);
  if (!file.ok()) return file.status().code == ENOENT ? gone(handle) : file.status();
  step("region-opened");
  struct stat info;
  if (fstat(file.value().get(), &info) != 0 || info.st_ino != place.inode ||
      !hold(file.value().get()))
    return gone(handle);
  step("region-open-held");
  auto mapped = RegionFile::map_file(file.value(), asked, address);
  if (!mapped.ok()) {
    (void)let_go(file.value().get(), own.get(), place.name);  // who held it meanwhile may have gone
    return mapped.status();
  }
  std::unique_ptr<SharedRegion> region(
      new SharedRegion(place, std::move(own), mapped.take(), false, false));
  base::Status status = region->enroll(pd, access);
  if (!status.ok()) return status;
  return region;
}

base::Status SharedRegion::enroll(ibv_pd* pd, int access) {
  const std::span<std::byte> pages = bytes();
  if (writable()) access |= IBV_ACCESS_LOCAL_WRITE;
  mr_ = verbs::MrPtr(ibv_reg_mr(pd, pages.data(), pages.size(), access));
  if (mr_) return base::Status::success();
  return registration_error(errno, "a region", pages.size());
}

base::Result<std::string> SharedRegion::handle() const {
  if (made_) return to_text(place_);
  return base::Status::error(
      EPERM, "share a region",
      "it was opened, and only its maker shares it; pass on the handle that it was opened with");
}

std::string SharedRegion::huge_pages_note() const {
  if (!huge_ || !populated() || huge_bytes(bytes()) > 0) return {};
  return huge_note(file_.fd());
}

base::Result<SharedRegionInfo> inspect_region(const std::string& handle) {
  const auto place = parse(handle);
  if (!place.ok()) return place.status();
  struct stat info;
  const std::string path = regions_folder() + "/" + place.value().name + "/" + kPages;
  if (lstat(path.c_str(), &info) != 0 || info.st_ino != place.value().inode) return gone(handle);
  return SharedRegionInfo{info.st_mode & 0777, info.st_uid, info.st_gid,
                          static_cast<uint64_t>(info.st_size)};
}

SweptRegions sweep_regions() {
  SweptRegions swept;
  const base::Fd all = open_folder(AT_FDCWD, regions_folder().c_str());
  if (!all.valid()) return swept;
  std::vector<std::string> names;
  if (DIR* listing = fdopendir(fcntl(all.get(), F_DUPFD_CLOEXEC, 0))) {
    while (const dirent* entry = readdir(listing)) {
      if (is_name(entry->d_name)) names.emplace_back(entry->d_name);
    }
    closedir(listing);
  }
  for (const std::string& name : names) {
    const base::Fd own(
        openat(all.get(), name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    struct stat info;
    if (!own.valid() || fstat(own.get(), &info) != 0) continue;
    if (info.st_uid != geteuid() && geteuid() != 0) continue;
    auto file = RegionFile::open_file(own.get(), kPages, RegionAccess::kRead);
    if (!file.ok()) {
      // No file: its maker was killed before it made one, or is about to and will begin again.
      if (file.status().code == ENOENT) (void)unlinkat(all.get(), name.c_str(), AT_REMOVEDIR);
      continue;
    }
    (void)fstat(file.value().get(), &info);
    if (let_go(file.value().get(), own.get(), name)) {
      ++swept.regions;
      swept.bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  (void)rmdir(regions_folder().c_str());
  return swept;
}

}  // namespace millrace::transport
