#include "soft/events.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "soft/device.h"
#include "soft/error.h"
#include "soft/process.h"
#include "soft/wake.h"

namespace millrace::soft {
namespace {

/** What acknowledgements of an object's events are counted with; the structures are the caller's.
 */
struct Counted {
  const void* object = nullptr;  ///< null: events of this type need no acknowledgement
  ibv_context* context = nullptr;
  pthread_mutex_t* mutex = nullptr;
  pthread_cond_t* cond = nullptr;
  uint32_t* completed = nullptr;
};

Counted counted(ibv_cq* cq) {
  return {cq, cq->context, &cq->mutex, &cq->cond, &cq->async_events_completed};
}
template <class T>
Counted counted(T* object) {
  return {object, object->context, &object->mutex, &object->cond, &object->events_completed};
}

Counted element_of(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return counted(event.element.cq);
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return counted(event.element.qp);
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return counted(event.element.srq);
    case IBV_EVENT_WQ_FATAL:
      return counted(event.element.wq);
    default:
      return {};
  }
}

/** Takes one count off the descriptor; it may be that there is none. Needs events_lock, which all
 * its readers hold. */
void take_count(Context& context) {
  pollfd readable = {context.event_fd.get(), POLLIN, 0};
  uint64_t one;
  if (poll(&readable, 1, 0) > 0) (void)!read(context.event_fd.get(), &one, sizeof(one));
}

void retire(const Counted& object) {
  Context& context = Context::of(object.context);
  uint32_t delivered = 0;
  {
    std::lock_guard lock(context.events_lock);
    for (size_t i = context.events.size(); i-- > 0;) {
      if (element_of(context.events[i]).object != object.object) continue;
      context.events.erase(context.events.begin() + static_cast<std::ptrdiff_t>(i));
      take_count(context);
    }
    const auto found = context.events_delivered.find(object.object);
    if (found == context.events_delivered.end()) return;
    delivered = found->second;
    context.events_delivered.erase(found);
  }
  pthread_mutex_lock(object.mutex);
  while (*object.completed != delivered) pthread_cond_wait(object.cond, object.mutex);
  pthread_mutex_unlock(object.mutex);
}

using Element = decltype(ibv_async_event::element);

template <class T>
void raise(T* object, T* Element::*element, ibv_event_type type) {
  ibv_async_event event = {};
  event.element.*element = object;
  event.event_type = type;
  raise_event(Context::of(object->context), event);
}

bool take_event(Context& context, ibv_async_event* event) {
  std::lock_guard lock(context.events_lock);
  if (context.events.empty()) return false;
  take_count(context);
  *event = context.events.front();
  context.events.pop_front();
  if (const void* object = element_of(*event).object) ++context.events_delivered[object];
  return true;
}

}  // namespace

void raise_event(Context& context, const ibv_async_event& event) {
  std::lock_guard lock(context.events_lock);
  context.events.push_back(event);
  const uint64_t one = 1;
  (void)!write(context.event_fd.get(), &one, sizeof(one));
}

void raise_cq_event(ibv_cq* cq, ibv_event_type type) { raise(cq, &Element::cq, type); }
void raise_qp_event(ibv_qp* qp, ibv_event_type type) { raise(qp, &Element::qp, type); }
void raise_srq_event(ibv_srq* srq, ibv_event_type type) { raise(srq, &Element::srq, type); }
void raise_wq_event(ibv_wq* wq, ibv_event_type type) { raise(wq, &Element::wq, type); }

void retire_events(ibv_cq* cq) { retire(counted(cq)); }
void retire_events(ibv_qp* qp) { retire(counted(qp)); }
void retire_events(ibv_srq* srq) { retire(counted(srq)); }
void retire_events(ibv_wq* wq) { retire(counted(wq)); }

int get_async_event(ibv_context* handle, ibv_async_event* event) {
  Context& context = Context::of(handle);
  // The descriptor that callers see has events alone; whoever waits in here serves the rest too.
  pollfd watched[] = {{context.event_fd.get(), POLLIN, 0},
                      {context.wake.fd(), POLLIN, 0},
                      {context.alarm.fd(), POLLIN, 0},
                      {context.process->presence_fd(), POLLIN, 0}};
  if (poll(watched, 4, 0) < 0) watched[0].revents = POLLIN;
  for (;;) {
    if (forked()) {
      fail(EPERM, "wait for an asynchronous event", "this process was forked");
      return -1;
    }
    serve(context, {.work = watched[1].revents != 0,
                    .time = watched[2].revents != 0,
                    .presence = watched[3].revents != 0});
    if (take_event(context, event)) return 0;
    const int flags = fcntl(context.event_fd.get(), F_GETFL);
    if (flags >= 0 && (flags & O_NONBLOCK) != 0) {
      errno = EAGAIN;
      return -1;
    }
    if (poll(watched, 4, -1) >= 0) continue;
    if (errno != EINTR) return -1;
    for (pollfd& one : watched) one.revents = 0;
  }
}

void ack_async_event(ibv_async_event* event) {
  const Counted object = element_of(*event);
  if (object.object == nullptr) return;  // port and device events need none
  pthread_mutex_lock(object.mutex);
  ++*object.completed;
  pthread_cond_broadcast(object.cond);
  pthread_mutex_unlock(object.mutex);
}

}  // namespace millrace::soft
