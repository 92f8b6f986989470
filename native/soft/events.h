#pragma once

#include <infiniband/verbs.h>

namespace millrace::soft {

struct Context;

/** Puts an asynchronous event in the context's queue; its descriptor becomes readable. Any thread.
 */
void raise_event(Context& context, const ibv_async_event& event);
/** The same for one object of the context. */
void raise_cq_event(ibv_cq* cq, ibv_event_type type);
void raise_qp_event(ibv_qp* qp, ibv_event_type type);
void raise_srq_event(ibv_srq* srq, ibv_event_type type);
void raise_wq_event(ibv_wq* wq, ibv_event_type type);

/**
 * Before an object goes: takes its queued events back, then waits until those that were got are
 * acknowledged, as libibverbs does. Nothing may raise events for it any more. No lock may be held.
 */
void retire_events(ibv_cq* cq);
void retire_events(ibv_qp* qp);
void retire_events(ibv_srq* srq);
void retire_events(ibv_wq* wq);

/**
 * The next event; waits for one unless the descriptor is non-blocking (EAGAIN). While it waits,
 * work requests of this context that wait go on. The descriptor itself is readable exactly when
 * there is an event.
 */
int get_async_event(ibv_context* context, ibv_async_event* event);
void ack_async_event(ibv_async_event* event);

}  // namespace millrace::soft
