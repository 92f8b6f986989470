#include "transport/wire.h"

#include <errno.h>

#include "transport/errors.h"

namespace millrace::transport {

base::Result<ibv_qp*> create_initiator(ibv_context* context, ibv_qp_init_attr_ex* attr,
                                       const char* detail) {
  const uint32_t depth = attr->cap.max_send_wr;
  const uint32_t wanted = attr->cap.max_send_sge;
  errno = 0;
  ibv_qp* qp = ibv_create_qp_ex(context, attr);
  if (qp == nullptr) {
    const int error = errno;
    // A device with shorter gather lists: take what it has.
    ibv_device_attr device = {};
    if (ibv_query_device(context, &device) != 0 || device.max_sge < 2 ||
        device.max_sge >= static_cast<int>(wanted)) {
      return verb_error(error, "ibv_create_qp_ex", detail);
    }
    attr->cap.max_send_wr = depth;
    attr->cap.max_send_sge = static_cast<uint32_t>(device.max_sge);
    errno = 0;
    qp = ibv_create_qp_ex(context, attr);
    if (qp == nullptr) return verb_error(errno, "ibv_create_qp_ex", detail);
    attr->cap.max_send_sge = static_cast<uint32_t>(device.max_sge);
    return qp;
  }
  attr->cap.max_send_sge = wanted;  // some devices write there that they have more
  return qp;
}

}  // namespace millrace::transport
