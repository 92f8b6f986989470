#include "verbs/open.h"

#include <errno.h>
#include <string.h>

#include <string>

#include "soft/provider.h"

namespace millrace::verbs {

base::Result<ibv_context*> open_device(std::string_view name) {
  const std::string wanted =
      (name.empty() || name == "soft" || name == "auto") ? "soft0" : std::string(name);
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr) return base::Status::error(errno, "list RDMA devices", strerror(errno));
  ibv_context* context = nullptr;
  base::Status status = base::Status::error(ENODEV, "open RDMA device");
  std::string known;
  for (int i = 0; i < count; ++i) {
    known += known.empty() ? "" : ", ";
    known += list[i]->name;
    if (wanted != list[i]->name) continue;
    errno = 0;
    context = ibv_open_device(list[i]);
    // The verbs call can only say an errno; the software device keeps the whole reason for this
    // thread.
    if (context == nullptr) status = soft::last_error();
  }
  ibv_free_device_list(list);
  if (context != nullptr) return context;
  if (status.code == ENODEV && status.detail.empty()) {
    status.detail =
        base::format("there is no device \"%s\"; there is: %s", wanted.c_str(), known.c_str());
  }
  return status;
}

}  // namespace millrace::verbs
