#include "transport/lanes.h"

#include <errno.h>

#include <algorithm>

#include "transport/errors.h"

namespace millrace::transport {

base::Result<std::unique_ptr<Lanes>> Lanes::create(const LaneParts& parts) {
  ibv_device_attr device = {};
  const int error = ibv_query_device(parts.context, &device);
  const char* const name = parts.context->device->name;
  if (error != 0) return verb_error(error, "ibv_query_device", name);
  auto port = Port::query(parts.context);
  if (!port.ok()) return port.status();
  if ((device.device_cap_flags & IBV_DEVICE_XRC) != 0) return create_xrc_lanes(parts, port.value());
  if (device.max_srq > 0) return create_rc_lanes(parts, port.value());
  return base::Status::error(
      EOPNOTSUPP, "choose the kind of lanes",
      base::format("%s has neither XRC nor shared receive queues; use another device", name));
}

void Lanes::forget(Lane* lane) { all_.erase(std::find(all_.begin(), all_.end(), lane)); }

}  // namespace millrace::transport
