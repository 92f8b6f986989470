#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "base/files.h"
#include "soft/port.h"
#include "soft/process.h"

namespace millrace::soft {

struct Qp;
struct Channel;

/** An opened device. `verbs` ends in the ibv_context that callers have. */
struct Context {
  verbs_context verbs = {};

  Process* process = nullptr;
  uint32_t device = 0;            ///< k of soft<k>
  Link link = Link::kInfiniband;  ///< of its port

  /** QPs of this context, for polls that carry waiting work requests on. See Process for the order
   * of locks. */
  std::mutex qps_lock;
  std::vector<Qp*> qps;
  /** How many of them have WRs that wait; lets a poll skip the list. */
  std::atomic<uint32_t> waiting_qps{0};
  std::vector<Channel*> channels;  ///< needs qps_lock

  /** Objects that keep the context open. */
  std::atomic<uint32_t> objects{0};

  std::mutex events_lock;
  std::deque<ibv_async_event> events;
  base::Fd event_fd;  ///< eventfd semaphore, one count an event

  static Context& of(ibv_context* context) {
    verbs_context* verbs = reinterpret_cast<verbs_context*>(reinterpret_cast<char*>(context) -
                                                            offsetof(verbs_context, context));
    return *reinterpret_cast<Context*>(verbs);  // first member
  }
  ibv_context* handle() { return &verbs.context; }
};

/** A protection domain: nothing but a number that SRQs, QPs and regions carry. */
struct Pd {
  ibv_pd pd = {};
  uint32_t number = 0;
  std::atomic<uint32_t> users{0};  ///< regions, SRQs, QPs, address handles
  static Pd& of(ibv_pd* handle) { return *reinterpret_cast<Pd*>(handle); }
};

/** Puts an asynchronous event in the context's queue; its descriptor becomes readable. Any thread.
 */
void raise_event(Context& context, const ibv_async_event& event);
/** Takes back the queued events of an object that is being destroyed. */
void forget_events(Context& context, const void* element);

ibv_device** get_device_list(int* count);
void free_device_list(ibv_device** list);
const char* get_device_name(ibv_device* device);
__be64 get_device_guid(ibv_device* device);
int get_device_index(ibv_device* device);
bool owns_device(const ibv_device* device);
ibv_context* open_device(ibv_device* device);
int close_device(ibv_context* context);
/** IBV_DEVICE_*: what is true of the device that this context is of. */
unsigned device_cap_flags(const Context& context);
int query_device(ibv_context* context, ibv_device_attr* attr);
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t size);
int query_rt_values(ibv_context* context, ibv_values_ex* values);
int get_async_event(ibv_context* context, ibv_async_event* event);
void ack_async_event(ibv_async_event* event);
ibv_pd* alloc_pd(ibv_context* context);
int dealloc_pd(ibv_pd* pd);

}  // namespace millrace::soft
