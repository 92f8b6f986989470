// Asynchronous events (ibv_get_async_event(3)), completion channels and what waits in them serve.
#include <atomic>
#include <thread>

#include "soft/cq.h"
#include "soft_support.h"

namespace millrace::test {
namespace {

bool readable(int fd) {
  pollfd p = {fd, POLLIN, 0};
  return poll(&p, 1, 0) == 1;
}

/** Makes SRQ_LIMIT_REACHED: the SRQ has fewer WQEs than the limit. */
void raise_limit(Endpoint& end) {
  ibv_srq_attr attr = {};
  attr.srq_limit = end.options.slots;
  ASSERT_EQ(ibv_modify_srq(end.srq.get(), &attr, IBV_SRQ_LIMIT), 0);
}

/** Fills a CQ of one entry twice over: CQ_ERR. */
void raise_cq_error(Endpoint& end) {
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  const uint32_t value = 0;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
}

TEST(SoftEvents, TheDescriptorIsReadableExactlyWhenThereIsAnEvent) {
  Fabric fabric;
  Endpoint::Options options;
  options.slots = 4;
  options.post = false;
  Endpoint end(options);
  EXPECT_FALSE(readable(end.context->async_fd));
  fcntl(end.context->async_fd, F_SETFL, O_NONBLOCK);
  ibv_async_event event = {};
  EXPECT_EQ(ibv_get_async_event(end.context.get(), &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  raise_limit(end);
  EXPECT_TRUE(readable(end.context->async_fd));
  raise_limit(end);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(ibv_get_async_event(end.context.get(), &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    EXPECT_EQ(event.element.srq, end.srq.get());
    EXPECT_EQ(readable(end.context->async_fd), i == 0);
    ibv_ack_async_event(&event);
  }
  EXPECT_EQ(ibv_get_async_event(end.context.get(), &event), -1);
}

// Waking a context for its work requests must not make the events' descriptor readable: a program
// that then calls ibv_get_async_event() would block.
TEST(SoftEvents, WorkThatWaitsIsNoEvent) {
  Fabric fabric;
  Endpoint::Options options;
  options.post = false;
  Endpoint end(options);
  ASSERT_EQ(end.connect(end.target_qpn()), 0);
  const uint32_t value = 1;
  ASSERT_EQ(end.send(end.srqn(), &value, sizeof(value)), 0);
  ASSERT_EQ(end.post(0), 0);
  EXPECT_FALSE(readable(end.context->async_fd));
  ibv_wc wc = {};
  EXPECT_TRUE(end.poll_sent(&wc));
}

TEST(SoftEvents, ObjectsWaitForTheAcknowledgement) {  // VERBS 2.12
  Fabric fabric;
  Endpoint::Options options;
  options.slots = 4;
  options.post = false;
  Endpoint end(options);
  raise_limit(end);
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(end.context.get(), &event), 0);
  std::atomic<bool> acknowledged{false};
  std::thread destroyer([&] {
    EXPECT_EQ(end.srq.close(), 0);
    EXPECT_TRUE(acknowledged.load()) << "gone under somebody who has its event";
  });
  // Its number goes first, so this tells that the destroyer is on its way.
  const uint32_t value = 1;
  ASSERT_EQ(end.connect(end.target_qpn(), 0), 0);
  EXPECT_TRUE(eventually([&] {
    ibv_wc wc = {};
    if (end.send(event.element.srq->handle, &value, sizeof(value)) != 0) return false;
    EXPECT_TRUE(end.poll_sent(&wc));
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RESET;
    EXPECT_EQ(ibv_modify_qp(end.initiator.get(), &attr, IBV_QP_STATE), 0);
    EXPECT_EQ(end.connect(end.target_qpn(), 0), 0);
    return wc.status == IBV_WC_REM_INV_REQ_ERR;
  }));
  acknowledged.store(true);
  ibv_ack_async_event(&event);
  destroyer.join();
}

TEST(SoftEvents, ACqWaitsForBothKindsOfAcknowledgement) {
  Fabric fabric;
  Endpoint::Options options;
  options.cqe = 2;
  Endpoint end(options);
  ASSERT_EQ(ibv_req_notify_cq(end.send_cq.get(), 0), 0);
  raise_cq_error(end);
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(end.context.get(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  ibv_cq* which = nullptr;
  void* user = nullptr;
  ASSERT_EQ(ibv_get_cq_event(end.send_channel.get(), &which, &user), 0);
  end.initiator = verbs::QpPtr();
  std::atomic<int> acknowledged{0};
  std::thread destroyer([&] {
    EXPECT_EQ(end.send_cq.close(), 0);
    EXPECT_EQ(acknowledged.load(), 2);
  });
  acknowledged.fetch_add(1);
  ibv_ack_async_event(&event);
  acknowledged.fetch_add(1);
  ibv_ack_cq_events(which, 1);
  destroyer.join();
}

TEST(SoftEvents, EventsOfWhatIsDestroyedGoWithIt) {
  Fabric fabric;
  Endpoint::Options options;
  options.slots = 4;
  options.post = false;
  options.cqe = 2;
  Endpoint end(options);
  raise_limit(end);
  EXPECT_TRUE(readable(end.context->async_fd));
  EXPECT_EQ(end.srq.close(), 0);
  EXPECT_FALSE(readable(end.context->async_fd)) << "nobody must get an event of it";
  fcntl(end.context->async_fd, F_SETFL, O_NONBLOCK);
  ibv_async_event event = {};
  EXPECT_EQ(ibv_get_async_event(end.context.get(), &event), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(SoftEvents, ChannelsAreBusyWhileCqsUseThem) {
  Fabric fabric;
  Endpoint::Options options;
  options.receive = options.send = false;
  options.channel = false;
  Endpoint end(options);
  verbs::ChannelPtr channel(ibv_create_comp_channel(end.context.get()));
  ASSERT_TRUE(channel);
  EXPECT_EQ(channel->refcnt, 0);
  verbs::CqPtr a(ibv_create_cq(end.context.get(), 1, nullptr, channel.get(), 0));
  verbs::CqPtr b(ibv_create_cq(end.context.get(), 1, nullptr, channel.get(), 0));
  EXPECT_EQ(channel->refcnt, 2);
  EXPECT_EQ(channel.close(), EBUSY);
  EXPECT_EQ(a.close(), 0);
  EXPECT_EQ(channel.close(), EBUSY);
  EXPECT_EQ(b.close(), 0);
  EXPECT_EQ(channel.close(), 0);
}

/** Posts one receive when told to, and says what arrives. */
MILLRACE_CHILD(late_receiver) {
  Endpoint::Options options;
  options.send = false;
  options.post = false;
  Endpoint end(options);
  parent.say(base::format("%u %u", end.target_qpn(), end.srqn()));
  parent.hear();
  EXPECT_EQ(end.post(0), 0);
  ibv_wc wc = {};
  EXPECT_TRUE(end.poll(&wc));
  parent.say(std::string(reinterpret_cast<char*>(end.slot(0))));
  parent.hear();
  return 0;
}

enum class Where { kOtherChannel, kAsyncEvents };
class SoftEventsServe : public ::testing::TestWithParam<Where> {};

// A work request waits for a receive. Its process sits in ibv_get_cq_event() of a channel that has
// nothing to do with it, or in ibv_get_async_event(): it goes on all the same (VERBS 1, lesson 3).
TEST_P(SoftEventsServe, WorkGoesOnWhereverTheProcessWaits) {
  Fabric fabric;
  Child receiver("late_receiver");
  unsigned target = 0, srqn = 0;
  ASSERT_EQ(sscanf(receiver.hear().c_str(), "%u %u", &target, &srqn), 2);
  Endpoint::Options options;
  options.channel = false;
  options.post = false;
  options.slots = 4;
  Endpoint end(options);
  verbs::ChannelPtr channel(ibv_create_comp_channel(end.context.get()));
  verbs::CqPtr bystander(ibv_create_cq(end.context.get(), 1, nullptr, channel.get(), 0));
  ASSERT_EQ(end.connect(target), 0);
  strcpy(reinterpret_cast<char*>(end.buffer), "went on");
  ASSERT_EQ(end.send(srqn, end.buffer, 8), 0);
  std::thread waiter([&] {
    if (GetParam() == Where::kAsyncEvents) {
      ibv_async_event event = {};
      EXPECT_EQ(ibv_get_async_event(end.context.get(), &event), 0);
      ibv_ack_async_event(&event);
    } else {
      pollfd p = {channel->fd, POLLIN, 0};
      fcntl(channel->fd, F_SETFL, O_NONBLOCK);
      ibv_cq* which = nullptr;
      void* user = nullptr;
      // Until the completion is there, which only this thread can have made.
      while (soft::Cq::of(end.send_cq.get()).send_count.load() == 0) {
        EXPECT_EQ(poll(&p, 1, kDeadlineMs), 1);
        EXPECT_EQ(ibv_get_cq_event(channel.get(), &which, &user), -1);
        if (::testing::Test::HasFailure()) return;
      }
    }
  });
  receiver.say("post");
  EXPECT_EQ(receiver.hear(), "went on");
  if (GetParam() == Where::kAsyncEvents) raise_limit(end);
  waiter.join();
  ibv_wc wc = {};
  EXPECT_TRUE(end.poll_sent(&wc));
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  receiver.say("end");
  EXPECT_EQ(receiver.wait(), 0);
}

/** An RC end that sits in ibv_get_async_event() and says what it gets. */
MILLRACE_CHILD(sleeping_responder) {
  Connected end;
  parent.say(base::format("%u %u", end.qpn(), end.mr->rkey));
  EXPECT_EQ(end.connect(static_cast<uint32_t>(std::stoul(parent.hear()))), 0);
  parent.say("connected");
  ibv_async_event event = {};
  EXPECT_EQ(ibv_get_async_event(end.context, &event), 0);
  EXPECT_EQ(event.element.qp, end.qp.get());
  parent.say(base::format("%d %d", event.event_type, end.state()));
  ibv_ack_async_event(&event);
  return 0;
}

// What an initiator finds at the responder reaches a process that does nothing but wait for events.
TEST(SoftEvents, AFaultWakesAResponderThatWaitsForEvents) {
  Fabric fabric;
  Connected end;
  Child responder("sleeping_responder");
  unsigned qpn = 0, rkey = 0;
  ASSERT_EQ(sscanf(responder.hear().c_str(), "%u %u", &qpn, &rkey), 2);
  responder.say(std::to_string(end.qpn()));
  ASSERT_EQ(responder.hear(), "connected");
  ASSERT_EQ(end.connect(qpn), 0);
  ibv_send_wr wr = end.wr(IBV_WR_RDMA_WRITE, 8);
  wr.wr.rdma.rkey = rkey ^ 1;
  EXPECT_EQ(end.run(wr), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(responder.hear(), base::format("%d %d", IBV_EVENT_QP_ACCESS_ERR, IBV_QPS_ERR));
  EXPECT_EQ(responder.wait(), 0);
}

TEST(SoftEvents, AQpWaitsForItsEventsAcknowledgement) {
  Fabric fabric;
  Connected a, b;
  ASSERT_EQ(a.connect(b.qpn()), 0);
  ASSERT_EQ(b.connect(a.qpn()), 0);
  ibv_send_wr wr = a.wr(IBV_WR_RDMA_WRITE, 8);
  wr.wr.rdma.rkey = b.mr->rkey ^ 1;
  EXPECT_EQ(a.run(wr), IBV_WC_REM_ACCESS_ERR);
  ibv_async_event event = {};
  ASSERT_EQ(ibv_get_async_event(b.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  const uint32_t number = b.qpn();
  std::atomic<bool> acknowledged{false};
  std::thread destroyer([&] {
    EXPECT_EQ(b.qp.close(), 0);
    EXPECT_TRUE(acknowledged.load());
  });
  EXPECT_EQ(event.element.qp->qp_num, number) << "the handle is still good";
  acknowledged.store(true);
  ibv_ack_async_event(&event);
  destroyer.join();
}

INSTANTIATE_TEST_SUITE_P(Waits, SoftEventsServe,
                         ::testing::Values(Where::kOtherChannel, Where::kAsyncEvents),
                         [](const auto& where) {
                           return where.param == Where::kAsyncEvents ? "AsyncEvents"
                                                                     : "OtherChannel";
                         });

}  // namespace
}  // namespace millrace::test
