#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/files.h"
#include "base/spinlock.h"
#include "soft/domains.h"
#include "soft/events.h"
#include "soft/port.h"
#include "soft/process.h"
#include "soft/wake.h"

namespace millrace::soft {

class Feed;
struct Qp;
struct Channel;

/** An opened device. `verbs` ends in the ibv_context that callers have. */
struct Context {
  verbs_context verbs = {};

  Process* process = nullptr;
  uint32_t device = 0;            ///< k of soft<k>
  Link link = Link::kInfiniband;  ///< of its port
  bool xrc = true;                ///< MILLRACE_SOFT_XRC=0: a device that has none

  /** QPs of this context, for polls that carry waiting work requests on. See Process for the order
   * of locks. */
  std::mutex qps_lock;
  std::vector<Qp*> qps;
  /** Those of them that have WRs that wait: polls visit only these. Needs waiting_lock, which is
   * taken last of all. */
  base::Spinlock waiting_lock;
  std::vector<Qp*> waiting;
  std::atomic<uint32_t> waiting_qps{0};  ///< its size; lets a poll skip the list
  std::vector<Qp*> visiting;             ///< progress()'s copy; needs qps_lock
  std::vector<Channel*> channels;        ///< needs qps_lock

  /** Objects that keep the context open. */
  std::atomic<uint32_t> objects{0};

  std::mutex events_lock;
  std::deque<ibv_async_event> events;  ///< needs events_lock
  base::Fd event_fd;  ///< eventfd semaphore, one count an event; read under events_lock
  std::map<const void*, uint32_t> events_delivered;  ///< by object; needs events_lock

  /** Whoever waits for this context's work requests (a WQE, room, a time) is woken through these,
   * in whatever event wait its process is. */
  WakeFifo wake;
  Alarm alarm;

  /** For an imported context: whose objects its handles name; else this process. */
  uint64_t objects_owner = 0;
  base::Fd token;        ///< what cmd_fd is, unless it was imported
  base::Fd imported_fd;  ///< the descriptor that it was imported with, closed with it
  /** PDs that were unimported while something still named them. Needs the process's objects(). */
  std::vector<std::unique_ptr<Pd>> orphans;

  /** What a network interface feeds its port with; null: it is on the fabric's switch alone. */
  std::unique_ptr<Feed> feed;

  Context();
  ~Context();  // where Feed is complete

  static Context& of(ibv_context* context) {
    verbs_context* verbs = reinterpret_cast<verbs_context*>(reinterpret_cast<char*>(context) -
                                                            offsetof(verbs_context, context));
    return *reinterpret_cast<Context*>(verbs);  // first member
  }
  ibv_context* handle() { return &verbs.context; }
};

ibv_device** get_device_list(int* count);
void free_device_list(ibv_device** list);
const char* get_device_name(ibv_device* device);
__be64 get_device_guid(ibv_device* device);
int get_device_index(ibv_device* device);
bool owns_device(const ibv_device* device);
ibv_context* open_device(ibv_device* device);
/** The same by number, also for a device that is not listed. */
ibv_context* open_device_number(uint32_t number);
int close_device(ibv_context* context);
/** IBV_DEVICE_*: what is true of the device that this context is of. */
unsigned device_cap_flags(const Context& context);
int query_device(ibv_context* context, ibv_device_attr* attr);
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t size);
int query_rt_values(ibv_context* context, ibv_values_ex* values);

}  // namespace millrace::soft
