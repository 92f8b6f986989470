#include "verbs/open.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "soft/provider.h"
#include "verbs/owners.h"
#include "verbs/probe.h"
#include "verbs/system.h"

namespace millrace::verbs {
namespace {

/** A provider's devices for as long as this lives. */
class DeviceList {
 public:
  explicit DeviceList(const Provider* provider) : provider_(provider) {
    if (provider_ != nullptr) list_ = provider_->get_device_list(&count_);
    if (list_ == nullptr) count_ = 0;
  }
  ~DeviceList() {
    if (list_ != nullptr) provider_->free_device_list(list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  bool ok() const { return list_ != nullptr; }
  ibv_device** begin() const { return list_; }
  ibv_device** end() const { return list_ + count_; }
  bool empty() const { return count_ == 0; }

 private:
  const Provider* provider_;
  ibv_device** list_ = nullptr;
  int count_ = 0;
};

/** Before the name of a network interface. */
constexpr std::string_view kAttached = "soft@";

bool names_soft(std::string_view name) {
  return name.size() >= 4 && name.substr(0, 4) == "soft" &&
         name.find_first_not_of("0123456789", 4) == std::string_view::npos;
}

std::string names(const DeviceList& list) {
  std::string text;
  for (ibv_device* device : list) {
    if (!text.empty()) text += ", ";
    text += device->name;
  }
  return text;
}

base::Result<ibv_context*> open_soft(std::string_view name) {
  const std::string wanted = name == "soft" ? "soft0" : std::string(name);
  const DeviceList list(soft::provider());
  // The verbs call can only say an errno; the software device keeps the whole reason for this
  // thread.
  if (!list.ok()) return soft::last_error();
  for (ibv_device* device : list) {
    if (wanted != device->name) continue;
    ibv_context* const context = ibv_open_device(device);
    if (context == nullptr) return soft::last_error();
    return context;
  }
  return base::Status::error(
      ENODEV, "open RDMA device",
      base::format("there is no software device \"%s\"; there is: %s (MILLRACE_SOFT_DEVICES says "
                   "how many)",
                   wanted.c_str(), names(list).c_str()));
}

base::Result<ibv_context*> open_system(ibv_device* device) {
  errno = 0;
  ibv_context* const context = ibv_open_device(device);
  if (context != nullptr) return context;
  const int error = errno != 0 ? errno : EIO;
  return base::Status::error(
      error, "ibv_open_device",
      base::format("%s: %s%s", device->name, strerror(error),
                   error == EACCES || error == EPERM
                       ? "; this user must be able to open /dev/infiniband/uverbs*"
                       : ""));
}

base::Result<ibv_context*> open_named(std::string_view name) {
  const DeviceList list(system_library().provider);
  for (ibv_device* device : list) {
    if (name == device->name) return open_system(device);
  }
  const std::string wanted(name);
  std::string detail = base::format("there is no RDMA device \"%s\"; there is: %s", wanted.c_str(),
                                    names(DeviceList(soft::provider())).c_str());
  if (!list.empty()) detail += ", " + names(list);
  if (access(("/sys/class/infiniband/" + wanted).c_str(), F_OK) == 0)
    detail += base::format(
        ". The kernel knows %s, but libibverbs has no driver for it, or /dev/infiniband is "
        "missing: apt-get install ibverbs-providers, modprobe ib_uverbs",
        wanted.c_str());
  else if (list.empty())
    detail += ". " + why_no_system_device();
  return base::Status::error(ENODEV, "open RDMA device", std::move(detail));
}

/** The first device of the system that lanes can be made on; null with the reasons. */
ibv_context* open_best(std::string* reasons) {
  const DeviceList list(system_library().provider);
  for (ibv_device* device : list) {
    auto opened = open_system(device);
    std::string missing;
    if (opened.ok()) {
      ContextPtr context(opened.value());
      missing = probe_device(context.get()).missing();
      if (missing.empty()) return context.release();
    } else {
      missing = opened.status().detail;
    }
    *reasons +=
        base::format("%s%s: %s", reasons->empty() ? "" : "; ", device->name, missing.c_str());
  }
  if (list.empty()) *reasons = why_no_system_device();
  return nullptr;
}

}  // namespace

std::string why_no_system_device() {
  const SystemLibrary& library = system_library();
  if (library.provider == nullptr) return library.problem;
  const DeviceList list(library.provider);
  if (!list.empty()) return {};
  bool known = false;
  if (DIR* const folder = opendir("/sys/class/infiniband")) {
    while (const dirent* const entry = readdir(folder)) known |= entry->d_name[0] != '.';
    closedir(folder);
  }
  if (!known) return "the kernel knows no RDMA device (/sys/class/infiniband is empty or missing)";
  if (access("/dev/infiniband", F_OK) != 0)
    return "the kernel has RDMA devices, but /dev/infiniband is missing: modprobe ib_uverbs; in a "
           "container, pass --device /dev/infiniband";
  return "the kernel has RDMA devices, but libibverbs has no driver for them: apt-get install "
         "ibverbs-providers";
}

base::Status call_error(const ibv_context* context, const char* what, int error) {
  base::Status status = base::Status::error(error != 0 ? error : EINVAL, what);
  if (soft::provider()->owns(context->device)) {
    base::Status reason = soft::last_error();
    if (reason.code == status.code) status.detail = std::move(reason.detail);
  }
  return status;
}

base::Result<ibv_context*> open_device(std::string_view name, std::string* note) {
  if (note != nullptr) note->clear();
  if (name.empty()) name = "soft";
  if (names_soft(name)) return open_soft(name);
  if (name.starts_with(kAttached)) {
    const std::string interface(name.substr(kAttached.size()));
    ibv_context* const context = soft::open_attached(interface.c_str());
    if (context == nullptr) return soft::last_error();
    return context;
  }
  if (name != "auto") return open_named(name);
  std::string reasons;
  if (ibv_context* const context = open_best(&reasons)) return context;
  if (note != nullptr) *note = "The software device is used: " + reasons;
  return open_soft("soft");
}

}  // namespace millrace::verbs
