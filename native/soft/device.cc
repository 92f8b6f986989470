#include "soft/device.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "soft/channel.h"
#include "soft/cq.h"
#include "soft/error.h"
#include "soft/initiator.h"
#include "soft/qp.h"
#include "soft/srq.h"
#include "soft/step.h"
#include "soft/xrcd.h"

namespace millrace::soft {
namespace {

thread_local base::Status last;  // see soft::last_error()

/** "soft0" in the locally administered part of the EUI-64 space. */
constexpr uint64_t kGuid = 0x02736F6674300000u;
constexpr uint16_t kLid = 1;

ibv_device make_device() {
  ibv_device device = {};
  device.node_type = IBV_NODE_CA;
  device.transport_type = IBV_TRANSPORT_IB;
  strcpy(device.name, "soft0");
  strcpy(device.dev_name, "millrace0");
  strcpy(device.dev_path, "/nonexistent/millrace0");
  strcpy(device.ibdev_path, "/nonexistent/soft0");
  return device;
}

ibv_device& the_device() {
  static ibv_device device = make_device();
  return device;
}

void fill_port(ibv_port_attr* attr) {
  attr->state = IBV_PORT_ACTIVE;
  attr->max_mtu = IBV_MTU_4096;
  attr->active_mtu = IBV_MTU_4096;
  attr->gid_tbl_len = 1;
  attr->port_cap_flags = 0;
  attr->max_msg_sz = 1u << 31;
  attr->pkey_tbl_len = 1;
  attr->lid = kLid;
  attr->sm_lid = kLid;
  attr->max_vl_num = 1;
  attr->active_width = 2;   // 4X
  attr->active_speed = 32;  // EDR
  attr->phys_state = 5;     // link up
  attr->link_layer = IBV_LINK_LAYER_INFINIBAND;
}

void fill_device(ibv_device_attr* attr) {
  *attr = {};
  strcpy(attr->fw_ver, "1.0");
  attr->node_guid = htobe64(kGuid);
  attr->sys_image_guid = htobe64(kGuid);
  attr->max_mr_size = ~uint64_t{0} >> 1;
  attr->page_size_cap = ~uint64_t{0xFFF};
  attr->vendor_id = 0x02736F;
  attr->max_qp = kQps;
  attr->max_qp_wr = 16384;
  attr->device_cap_flags =
      IBV_DEVICE_XRC | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_CURR_QP_STATE_MOD;
  attr->max_sge = kMaxSendSge;
  attr->max_sge_rd = kMaxSendSge;
  attr->max_cq = 4096;
  attr->max_cqe = kMaxCqe;
  attr->max_mr = kMrs;
  attr->max_pd = 1 << 20;
  attr->max_qp_rd_atom = 16;
  attr->max_res_rd_atom = 16 * kQps;
  attr->max_qp_init_rd_atom = 16;
  attr->atomic_cap = IBV_ATOMIC_NONE;
  attr->max_srq = kSrqs;
  attr->max_srq_wr = kMaxSrqWr;
  attr->max_srq_sge = kMaxSrqSge;
  attr->max_pkeys = 1;
  attr->local_ca_ack_delay = 0;
  attr->phys_port_cnt = 1;
}

int port_is_one(uint8_t port) {
  return port == 1 ? 0
                   : fail(EINVAL, "query a port",
                          base::format("port %u does not exist; there is port 1", port));
}

void set_ops(Context& context) {
  ibv_context& handle = context.verbs.context;
  handle.device = &the_device();
  handle.cmd_fd = -1;
  handle.num_comp_vectors = 1;
  handle.abi_compat = __VERBS_ABI_IS_EXTENDED;
  handle.ops.poll_cq = poll_cq;
  handle.ops.req_notify_cq = req_notify_cq;
  handle.ops.post_srq_recv = post_srq_recv;
  handle.ops.post_send = post_send;
  handle.ops.post_recv = post_recv;
  context.verbs.sz = sizeof(verbs_context);
  context.verbs.query_port = query_port_ex;
  context.verbs.query_device_ex = query_device_ex;
  context.verbs.open_xrcd = open_xrcd;
  context.verbs.close_xrcd = close_xrcd;
  context.verbs.create_srq_ex = create_srq_ex;
  context.verbs.get_srq_num = get_srq_num;
  context.verbs.create_qp_ex = create_qp_ex;
  context.verbs.open_qp = open_qp;
}

}  // namespace

void remember(base::Status status) {
  errno = status.code;
  last = std::move(status);
}

const base::Status& last_remembered() { return last; }

ibv_device** get_device_list(int* count) {
  ibv_device** list = static_cast<ibv_device**>(calloc(2, sizeof(ibv_device*)));
  if (list == nullptr) return fail_null(ENOMEM, "list RDMA devices");
  list[0] = &the_device();
  if (count != nullptr) *count = 1;
  return list;
}

void free_device_list(ibv_device** list) { free(list); }
const char* get_device_name(ibv_device* device) { return device->name; }
__be64 get_device_guid(ibv_device*) { return htobe64(kGuid); }
int get_device_index(ibv_device*) { return 0; }
bool owns_device(const ibv_device* device) { return device == &the_device(); }

ibv_context* open_device(ibv_device*) {
  base::Result<Process*> process = Process::acquire();
  if (!process.ok()) return fail_null(process.status());
  auto context = std::make_unique<Context>();
  context->process = process.value();
  set_ops(*context);
  ibv_context& handle = context->verbs.context;
  pthread_mutex_init(&handle.mutex, nullptr);
  context->event_fd = base::Fd(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
  if (!context->event_fd.valid()) {
    const int error = errno;
    process.value()->release();
    return fail_null(error, "create the asynchronous event descriptor", strerror(error));
  }
  handle.async_fd = context->event_fd.get();
  std::lock_guard lock(process.value()->objects());
  process.value()->contexts.push_back(context.get());
  return &context.release()->verbs.context;
}

int close_device(ibv_context* handle) {
  Context* context = &Context::of(handle);
  if (forked()) return fail(EPERM, "close the device", "this process was forked");
  const uint32_t objects = context->objects.load();
  if (objects != 0)
    return fail(EBUSY, "close the device",
                base::format("%u objects made from it still exist", objects));
  {
    std::lock_guard lock(context->process->objects());
    std::erase(context->process->contexts, context);
  }
  context->process->release();
  pthread_mutex_destroy(&handle->mutex);
  delete context;
  return 0;
}

int query_device(ibv_context*, ibv_device_attr* attr) {
  fill_device(attr);
  return 0;
}

int query_device_ex(ibv_context*, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                    size_t size) {
  if (input != nullptr && input->comp_mask != 0) return EINVAL;
  if (size < sizeof(ibv_device_attr)) return EINVAL;
  ibv_device_attr_ex full = {};
  fill_device(&full.orig_attr);
  memcpy(attr, &full, std::min(size, sizeof(full)));
  if (size > sizeof(full))
    memset(reinterpret_cast<char*>(attr) + sizeof(full), 0, size - sizeof(full));
  return 0;
}

int query_port_ex(ibv_context*, uint8_t port, ibv_port_attr* attr, size_t size) {
  if (int error = port_is_one(port)) return error;
  ibv_port_attr full = {};
  fill_port(&full);
  memset(attr, 0, size);
  memcpy(attr, &full, std::min(size, sizeof(full)));
  return 0;
}

int query_port(ibv_context*, uint8_t port, _compat_ibv_port_attr* attr) {
  if (int error = port_is_one(port)) return error;
  // The old structure is the start of the new one, up to and with link_layer.
  ibv_port_attr full = {};
  fill_port(&full);
  memcpy(static_cast<void*>(attr), &full,
         offsetof(ibv_port_attr, link_layer) + sizeof(full.link_layer));
  return 0;
}

int query_gid(ibv_context*, uint8_t port, int index, ibv_gid* gid) {
  if (int error = port_is_one(port)) return error;
  if (index != 0)
    return fail(EINVAL, "query a GID",
                base::format("index %d does not exist; there is index 0", index));
  gid->global.subnet_prefix = htobe64(0xFE80000000000000u);
  gid->global.interface_id = htobe64(kGuid);
  return 0;
}

int query_pkey(ibv_context*, uint8_t port, int index, __be16* pkey) {
  if (int error = port_is_one(port)) return error;
  if (index != 0)
    return fail(EINVAL, "query a P_Key",
                base::format("index %d does not exist; there is index 0", index));
  *pkey = htobe16(0xFFFF);
  return 0;
}

void raise_event(Context& context, const ibv_async_event& event) {
  {
    std::lock_guard lock(context.events_lock);
    context.events.push_back(event);
  }
  const uint64_t one = 1;
  (void)!write(context.event_fd.get(), &one, sizeof(one));
}

void forget_events(Context& context, const void* element) {
  std::lock_guard lock(context.events_lock);
  std::erase_if(context.events,
                [element](const ibv_async_event& e) { return e.element.srq == element; });
  // The descriptor may count one too many; get_async_event() then finds an empty queue and waits
  // on.
}

int get_async_event(ibv_context* handle, ibv_async_event* event) {
  Context& context = Context::of(handle);
  for (;;) {
    uint64_t one;
    if (read(handle->async_fd, &one, sizeof(one)) != sizeof(one)) {
      if (errno == EINTR) continue;
      return -1;
    }
    std::lock_guard lock(context.events_lock);
    if (context.events.empty()) continue;
    *event = context.events.front();
    context.events.pop_front();
    if (event->event_type == IBV_EVENT_SRQ_LIMIT_REACHED ||
        event->event_type == IBV_EVENT_SRQ_ERR) {
      Srq& srq = Srq::of(event->element.srq);
      pthread_mutex_lock(&srq.srq.mutex);
      ++srq.events_delivered;
      pthread_mutex_unlock(&srq.srq.mutex);
    }
    return 0;
  }
}

void ack_async_event(ibv_async_event* event) {
  pthread_mutex_t* mutex = nullptr;
  pthread_cond_t* cond = nullptr;
  uint32_t* completed = nullptr;
  if (event->event_type == IBV_EVENT_SRQ_LIMIT_REACHED || event->event_type == IBV_EVENT_SRQ_ERR) {
    ibv_srq* srq = event->element.srq;
    mutex = &srq->mutex;
    cond = &srq->cond;
    completed = &srq->events_completed;
  } else if (event->event_type == IBV_EVENT_CQ_ERR) {
    ibv_cq* cq = event->element.cq;
    mutex = &cq->mutex;
    cond = &cq->cond;
    completed = &cq->async_events_completed;
  } else {
    return;
  }
  pthread_mutex_lock(mutex);
  ++*completed;
  pthread_cond_broadcast(cond);
  pthread_mutex_unlock(mutex);
}

ibv_pd* alloc_pd(ibv_context* handle) {
  if (forked()) return fail_null(EPERM, "allocate a PD", "this process was forked");
  Context& context = Context::of(handle);
  Pd* pd = new Pd;
  pd->number = static_cast<uint32_t>(context.process->next_number());
  pd->pd.context = handle;
  pd->pd.handle = pd->number;
  context.objects.fetch_add(1, std::memory_order_relaxed);
  return &pd->pd;
}

int dealloc_pd(ibv_pd* handle) {
  if (forked()) return fail(EPERM, "free a PD", "this process was forked");
  Pd* pd = &Pd::of(handle);
  const uint32_t users = pd->users.load();
  if (users != 0)
    return fail(EBUSY, "free a PD", base::format("%u regions, SRQs and QPs are in it", users));
  Context::of(handle->context).objects.fetch_sub(1, std::memory_order_relaxed);
  delete pd;
  return 0;
}

}  // namespace millrace::soft
