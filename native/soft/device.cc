#include "soft/device.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "soft/channel.h"
#include "soft/cq.h"
#include "soft/cq_ex.h"
#include "soft/error.h"
#include "soft/feed.h"
#include "soft/flow.h"
#include "soft/import.h"
#include "soft/initiator.h"
#include "soft/mw.h"
#include "soft/qp.h"
#include "soft/srq.h"
#include "soft/step.h"
#include "soft/xrcd.h"

namespace millrace::soft {
namespace {

thread_local base::Status last;  // see soft::last_error()

struct DeviceTable {
  ibv_device devices[kDevices] = {};
  DeviceTable() {
    for (uint32_t k = 0; k < kDevices; ++k) {
      ibv_device& device = devices[k];
      device.node_type = IBV_NODE_CA;
      device.transport_type = IBV_TRANSPORT_IB;
      snprintf(device.name, sizeof(device.name), "soft%u", k);
      snprintf(device.dev_name, sizeof(device.dev_name), "millrace%u", k);
      snprintf(device.dev_path, sizeof(device.dev_path), "/nonexistent/millrace%u", k);
      snprintf(device.ibdev_path, sizeof(device.ibdev_path), "/nonexistent/soft%u", k);
    }
  }
};

/** Their addresses are who they are; how many of them are listed is the environment's business. */
DeviceTable& table() {
  static DeviceTable devices;
  return devices;
}

uint32_t number_of(const ibv_device* device) {
  return static_cast<uint32_t>(device - table().devices);
}

void set_ops(Context& context) {
  ibv_context& handle = context.verbs.context;
  handle.device = &table().devices[context.device];
  handle.num_comp_vectors = 1;
  handle.abi_compat = __VERBS_ABI_IS_EXTENDED;
  handle.ops.poll_cq = poll_cq;
  handle.ops.req_notify_cq = req_notify_cq;
  handle.ops.post_srq_recv = post_srq_recv;
  handle.ops.post_send = post_send;
  handle.ops.post_recv = post_recv;
  handle.ops.alloc_mw = alloc_mw;
  handle.ops.dealloc_mw = dealloc_mw;
  handle.ops.bind_mw = bind_mw;
  context.verbs.sz = sizeof(verbs_context);
  context.verbs.query_port = query_port_ex;
  context.verbs.query_device_ex = query_device_ex;
  context.verbs.query_rt_values = query_rt_values;
  context.verbs.ibv_create_flow = create_flow;
  context.verbs.ibv_destroy_flow = destroy_flow;
  context.verbs.create_wq = create_wq;
  context.verbs.modify_wq = modify_wq;
  context.verbs.destroy_wq = destroy_wq;
  context.verbs.create_rwq_ind_table = create_rwq_ind_table;
  context.verbs.destroy_rwq_ind_table = destroy_rwq_ind_table;
  context.verbs.create_counters = create_counters;
  context.verbs.destroy_counters = destroy_counters;
  context.verbs.attach_counters_point_flow = attach_counters_point_flow;
  context.verbs.read_counters = read_counters;
  if (context.xrc) {
    context.verbs.open_xrcd = open_xrcd;
    context.verbs.close_xrcd = close_xrcd;
    context.verbs.get_srq_num = get_srq_num;
    context.verbs.open_qp = open_qp;
  }
  context.verbs.create_srq_ex = create_srq_ex;
  context.verbs.create_qp_ex = create_qp_ex;
  context.verbs.create_cq_ex = create_cq_ex;
  context.verbs.modify_cq = modify_cq;
  context.verbs.alloc_td = alloc_td;
  context.verbs.dealloc_td = dealloc_td;
  context.verbs.alloc_parent_domain = alloc_parent_domain;
}

base::Status open_descriptors(Context& context) {
  context.event_fd = base::Fd(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
  if (!context.event_fd.valid()) {
    return base::Status::error(errno, "create the asynchronous event descriptor", strerror(errno));
  }
  base::Result<base::Fd> token = make_device_token(*context.process, context.device);
  if (!token.ok()) return token.status();
  context.token = token.take();
  base::Result<WakeFifo> wake = WakeFifo::create(*context.process);
  if (!wake.ok()) return wake.status();
  context.wake = wake.take();
  return context.alarm.open();
}

}  // namespace

void remember(base::Status status) {
  errno = status.code;
  last = std::move(status);
}

const base::Status& last_remembered() { return last; }

ibv_device** get_device_list(int* count) {
  if (count != nullptr) *count = 0;
  base::Result<uint32_t> there = device_count();
  if (!there.ok()) return fail_null(there.status());
  ibv_device** list = static_cast<ibv_device**>(calloc(there.value() + 1, sizeof(ibv_device*)));
  if (list == nullptr) return fail_null(ENOMEM, "list RDMA devices");
  for (uint32_t k = 0; k < there.value(); ++k) list[k] = &table().devices[k];
  if (count != nullptr) *count = static_cast<int>(there.value());
  return list;
}

void free_device_list(ibv_device** list) { free(list); }
const char* get_device_name(ibv_device* device) { return device->name; }
__be64 get_device_guid(ibv_device* device) { return htobe64(device_guid(number_of(device))); }
int get_device_index(ibv_device* device) { return static_cast<int>(number_of(device)); }
bool owns_device(const ibv_device* device) {
  return device >= table().devices && device < table().devices + kDevices;
}

ibv_context* open_device(ibv_device* device) { return open_device_number(number_of(device)); }

namespace {

ibv_context* open_with(uint32_t number, Link link) {
  base::Result<Process*> process = Process::acquire();
  if (!process.ok()) return fail_null(process.status());
  auto context = std::make_unique<Context>();
  context->process = process.value();
  context->device = number;
  context->link = link;
  const char* xrc = getenv("MILLRACE_SOFT_XRC");
  context->xrc = xrc == nullptr || strcmp(xrc, "0") != 0;
  set_ops(*context);
  ibv_context& handle = context->verbs.context;
  pthread_mutex_init(&handle.mutex, nullptr);
  base::Status status = open_descriptors(*context);
  if (!status.ok()) {
    context->wake.remove(*context->process);
    process.value()->release();
    return fail_null(std::move(status));
  }
  handle.async_fd = context->event_fd.get();
  handle.cmd_fd = context->token.get();
  context->objects_owner = process.value()->owner();
  std::lock_guard lock(process.value()->objects());
  process.value()->contexts.push_back(context.get());
  return &context.release()->verbs.context;
}

}  // namespace

Context::Context() = default;
Context::~Context() = default;

ibv_context* open_device_number(uint32_t number) {
  base::Result<Link> link = link_layer();
  if (!link.ok()) return fail_null(link.status());
  return open_with(number, link.value());
}

ibv_context* open_attached(const char* interface) {
  ibv_context* handle = open_with(0, Link::kEthernet);
  if (handle == nullptr) return nullptr;
  Context& context = Context::of(handle);
  base::Result<std::unique_ptr<Feed>> feed = Feed::open(context, interface);
  base::Status status = feed.status();
  if (feed.ok()) {
    context.feed = feed.take();
    status = context.feed->start();
  }
  if (status.ok()) return handle;
  (void)close_device(handle);
  return fail_null(status);
}

int close_device(ibv_context* handle) {
  Context* context = &Context::of(handle);
  if (forked()) return fail(EPERM, "close the device", "this process was forked");
  // The feed's own are not the caller's.
  const uint32_t own = context->feed != nullptr ? context->feed->objects() : 0;
  const uint32_t objects = context->objects.load() - own;
  if (objects != 0)
    return fail(EBUSY, "close the device",
                base::format("%u objects made from it still exist", objects));
  context->feed.reset();
  {
    std::lock_guard lock(context->process->objects());
    std::erase(context->process->contexts, context);
  }
  context->wake.remove(*context->process);
  context->process->release();
  pthread_mutex_destroy(&handle->mutex);
  delete context;
  return 0;
}

}  // namespace millrace::soft
